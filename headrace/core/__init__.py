"""The parts that every room builds on: records, errors, time, files."""
