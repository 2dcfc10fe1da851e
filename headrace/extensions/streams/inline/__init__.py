"""Topologies in this process: the operators on micro-batches in columns."""
