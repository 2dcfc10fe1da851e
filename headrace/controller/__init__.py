"""The controller of a process's channels, and how it takes over another configuration."""
