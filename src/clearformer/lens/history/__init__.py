"""A run's own past: when in its training something happened."""
