"""The admin API: what a process is doing, changes to it, and the commands that are its client."""
