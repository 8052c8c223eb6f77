"""Labelled texts: reading, splitting, preparing and batches."""
