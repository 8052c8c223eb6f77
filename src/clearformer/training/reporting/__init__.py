"""Reports of a run under way: on a terminal, in a notebook, in files, to loggers."""
