"""The training behind a prediction: the windows that favour it, and the run trained without them."""
