"""The correspondence of our models to foreign ones: settings, tensors, and settings folded into weights."""
