"""Runs on disk: finding and reading them by name, training, evaluating and replaying them."""
