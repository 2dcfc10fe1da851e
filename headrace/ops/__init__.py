"""Operators' tools beside the data path: the API and its page, and the commands."""
