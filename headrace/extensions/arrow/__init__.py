"""The arrow engine: reducers on tables of Arrow, in this process."""
