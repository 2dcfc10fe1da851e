"""The SQL sink. SQLAlchemy is imported here only, and only where such a sink is built."""

from __future__ import annotations

from headrace.extensions.sql.sink import SqlSink
from headrace.extensions.sql.target import WriteMode

__all__ = ["SqlSink", "WriteMode"]
