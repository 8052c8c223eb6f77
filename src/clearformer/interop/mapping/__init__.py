"""How one of our models corresponds to another's: settings, tensors, and what is folded into weights."""
