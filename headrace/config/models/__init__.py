"""The models of the configuration, one module for each section of the file."""
