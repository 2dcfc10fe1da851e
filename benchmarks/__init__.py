"""Benchmarks: each compares two ways side by side on a broker of its own; see README.md."""
