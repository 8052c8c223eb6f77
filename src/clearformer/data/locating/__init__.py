"""Where what a model was trained on stands in the files that it was read from."""
