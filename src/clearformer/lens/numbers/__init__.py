"""The numbers of one block: every matrix on the way through it, and the operands of any one number."""
