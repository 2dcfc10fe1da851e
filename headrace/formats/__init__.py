"""Formats of values, and the columns that they become."""
