"""Training: objectives, tasks, the loop, optimisers and schedules, and the files of a run."""
