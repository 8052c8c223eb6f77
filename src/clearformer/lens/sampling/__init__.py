"""Texts being written: the next draw with all that cuts it, continuations token by token, the beams of a search."""
