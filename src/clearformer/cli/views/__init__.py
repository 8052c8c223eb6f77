"""Formatting of the library's results for the commands."""
