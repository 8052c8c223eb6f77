"""Runs on disk: found and read by their names, and evaluated."""
