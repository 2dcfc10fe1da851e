"""Code that runs in Spark's Python processes; on their path, and no part of the daemon."""
