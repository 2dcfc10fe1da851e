"""Looking at the state of a channel by key, and moving it; see docs/keyed.md."""
