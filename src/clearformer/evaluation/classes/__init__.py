"""How well texts are put into classes, and a baseline to compare with."""
