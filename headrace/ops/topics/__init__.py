"""The topics that a configuration needs."""
