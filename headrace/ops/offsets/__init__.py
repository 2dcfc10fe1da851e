"""Showing, resetting, exporting and importing the offsets of a channel; see docs/offsets.md."""
