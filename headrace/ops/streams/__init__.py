"""The command that shows plans of topologies."""
