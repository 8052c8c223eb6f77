"""Runs on disk: found and read by their names, trained and evaluated."""
