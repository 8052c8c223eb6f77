"""Data that need no download: dates and numbers in two languages, and names labelled with their language."""
