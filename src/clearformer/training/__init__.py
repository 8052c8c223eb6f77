"""Training: objectives, tasks, the loop, optimizers and schedules, and the files of a run."""
