"""The part in C: values into columns, without a Python object for each."""
