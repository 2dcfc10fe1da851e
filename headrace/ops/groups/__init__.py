"""Showing who is in a channel's group and who has what; see docs/coordination.md."""
