"""The kinds of values a field can take: how each is read, shown, described and refused."""
