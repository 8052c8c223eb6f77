"""The commands, one file each; each is imported only when it is called."""
