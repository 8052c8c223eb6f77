"""Running texts: where they come from, how they are split and prepared, and the order they are drawn in."""
