"""What reads in a comparison with other libraries: programs, each in a process of its own.

A program of a peer runs in an environment that has that peer's packages and nothing of Headrace.
"""
