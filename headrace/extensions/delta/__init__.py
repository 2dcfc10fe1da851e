"""The Delta sink: its section, what it writes into a table's log, how it keeps the table small."""
