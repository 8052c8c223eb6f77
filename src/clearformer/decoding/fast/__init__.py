"""Other forms of a step for one new token, quicker on some machine."""
