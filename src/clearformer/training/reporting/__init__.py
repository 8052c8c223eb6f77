"""Reports of a run in progress: on a terminal, in a notebook, in files, to loggers."""
