"""Pairs of lines in two languages: sources, preparing, and batches of similar length."""
