"""The page without its server: as a single file that works from disk, and in a notebook."""
