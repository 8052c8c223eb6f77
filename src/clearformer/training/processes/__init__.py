"""The processes that train: several that share a model's batches, and the signals that end one."""
