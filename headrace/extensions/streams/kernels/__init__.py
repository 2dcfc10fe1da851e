"""Operators in columns: each takes the records of a micro-batch as arrays, and returns arrays."""
