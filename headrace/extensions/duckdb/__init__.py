"""The DuckDB sink: rows and offsets in one file, in one transaction. It takes headrace[duckdb]."""
