"""Benchmarks against other packages: training, generation, loading and tokenizing, alternately on one machine."""
