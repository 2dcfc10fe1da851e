"""Reducers with state by key: what a reducer gets and returns. docs/keyed.md is the guide."""
