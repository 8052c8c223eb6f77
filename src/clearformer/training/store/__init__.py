"""A run on disk: its folder, its checkpoints, and the lock that gives it one writer."""
