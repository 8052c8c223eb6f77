"""Many runs at once: claims on runs, worker processes, and their progress."""
