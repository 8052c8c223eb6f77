"""Labelled texts: how they are read, split and prepared, and batches of them."""
