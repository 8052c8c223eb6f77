"""Running texts: their sources, how they are split and prepared, and the order of batches."""
