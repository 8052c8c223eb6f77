"""The loss of every token of the text that a run is trained or measured on."""
