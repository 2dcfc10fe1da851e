"""Spark: the session that channels share, and the engine of their reducers."""
