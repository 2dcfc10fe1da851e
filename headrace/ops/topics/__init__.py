"""Create the topics that a configuration needs."""
