"""Generation from text to text: samples, the likeliest continuations, translations."""
