"""Dead letters of a channel: what they say, and their way back to where they came from."""
