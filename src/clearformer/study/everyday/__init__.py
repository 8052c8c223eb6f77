"""Everyday questions: settings swept as a study of one's own, runs compared, their curves drawn."""
