"""The running half: the processors of channels with state, and of those that re-key."""
