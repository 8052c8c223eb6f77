"""The processes that train: several that share each batch, and the signals that end one."""
