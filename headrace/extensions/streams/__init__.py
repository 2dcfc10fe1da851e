"""Topologies of operators over several topics: windows, aggregates, joins and tables by key."""
