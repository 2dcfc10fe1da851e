"""Open transactions that hold a channel's readers up, and their end; see docs/offsets.md."""
