"""Topologies of operators on streams: what programs import. See docs/streams.md."""

from __future__ import annotations

from headrace.extensions.streams.aggregates import (
    approx_distinct,
    approx_quantile,
    approx_quantiles,
    collect,
    count,
    distinct,
    first,
    fold,
    last,
    least,
    mean,
    most,
    top,
    total,
)
from headrace.extensions.streams.expressions import (
    key,
    time,
    when,
    window_end,
    window_start,
)
from headrace.extensions.streams.inline.streams_test import OutRecord, StreamsTest
from headrace.extensions.streams.rows import Field, Row, field
from headrace.extensions.streams.topology import (
    Grouped,
    GroupedTable,
    SharedTable,
    Stream,
    Table,
    Topology,
)
from headrace.extensions.streams.windows import hopping, session, sliding, tumbling

__all__ = [
    "Field",
    "Grouped",
    "GroupedTable",
    "OutRecord",
    "Row",
    "SharedTable",
    "Stream",
    "StreamsTest",
    "Table",
    "Topology",
    "approx_distinct",
    "approx_quantile",
    "approx_quantiles",
    "collect",
    "count",
    "distinct",
    "field",
    "first",
    "fold",
    "hopping",
    "key",
    "last",
    "least",
    "mean",
    "most",
    "session",
    "sliding",
    "time",
    "top",
    "total",
    "tumbling",
    "when",
    "window_end",
    "window_start",
]
