"""Reading and writing tokenizers in foreign files."""
