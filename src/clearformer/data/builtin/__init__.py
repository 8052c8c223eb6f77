"""Data that need no download: dates and numbers in two languages, names and their languages."""
