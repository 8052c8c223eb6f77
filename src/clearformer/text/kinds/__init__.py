"""The kinds of tokenisers, one file each."""
