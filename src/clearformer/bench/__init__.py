"""Benchmarks against other packages: training, generation, loading and tokenising, alternately on one machine."""
