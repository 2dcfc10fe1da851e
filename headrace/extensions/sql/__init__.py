"""The SQL sink: its section, and one transaction for rows and offsets."""
