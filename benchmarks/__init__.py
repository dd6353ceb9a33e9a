"""Measures the figures that duly promises: `python -m benchmarks`, or `make bench`."""
