"""Records from librdkafka to Arrow columns and back, without a Python object for each.

The part that is written in C is compiled when Headrace is installed, where there is a C compiler.
Without it records come and go as the objects of the Python client, and everything else is the
same.
"""

from __future__ import annotations

from headrace.kafka.columnar.source import ColumnarRecordSource

__all__ = ["ColumnarRecordSource"]
