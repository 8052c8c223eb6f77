"""Text in, text out: samples, the likeliest continuations, translations."""
