"""Topologies in channels: micro-batches of tasks, with stores that the changelog has too."""
