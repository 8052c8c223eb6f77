"""Reading and writing tokenisers in foreign files."""
