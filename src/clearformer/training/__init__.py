"""Training: objectives, tasks, the loop, optimisers and schedules, and a run on disk."""
