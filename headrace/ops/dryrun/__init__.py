"""``headrace reduce``: a reducer tried on a file or a range of a topic, committing nothing."""
