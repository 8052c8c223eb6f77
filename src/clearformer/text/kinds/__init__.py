"""The kinds of tokenizers, one file each."""
