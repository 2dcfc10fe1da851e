"""Applications on keyed state, ready to run: each is a reducer and its commands."""
