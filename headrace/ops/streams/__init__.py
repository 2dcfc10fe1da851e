"""Showing what topologies of streams are run as."""
