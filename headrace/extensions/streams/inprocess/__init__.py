"""Topologies in this process, without servers: what tests of programs run."""
