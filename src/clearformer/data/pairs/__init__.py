"""Pairs of lines: where they come from, how they are prepared, and batches of about one length."""
