"""The page without its server: as one file that works from disk, and in a notebook."""
