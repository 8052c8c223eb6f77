"""Tokenisers in others' files, in and out."""
