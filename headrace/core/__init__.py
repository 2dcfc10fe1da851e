"""What every room builds on: records, errors, time, files."""
