"""The ``sink`` of a channel: where results go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.config.kinds.paths import LocalPath, PathOrUrl
from headrace.config.kinds.scalars import Count
from headrace.config.kinds.text import Distinct, FreeText, ImportPath
from headrace.config.model.base import Cold, Section


class DeltaSinkConfig(Section):
    """A Delta table: rows and offsets are committed together, so each record counts once."""

    type: Cold[Literal["delta"]] = "delta"
    """This sink."""

    path: Cold[PathOrUrl]
    """The table, made with the first rows where it is missing."""

    partition_by: Cold[Annotated[tuple[FreeText, ...], Distinct]] = ()
    """The columns that a new table is partitioned by."""


class JsonLinesSinkConfig(Section):
    """JSON lines in a file."""

    type: Cold[Literal["jsonl"]] = "jsonl"
    """This sink."""

    path: Cold[LocalPath]
    """The file that rows are appended to; several processes may share it."""


class ConsoleSinkConfig(Section):
    """A few rows of each micro-batch on standard output, for a look."""

    type: Cold[Literal["console"]] = "console"
    """This sink."""

    rows: Cold[Count] = 20
    """How many rows to print of each micro-batch."""


class NoopSinkConfig(Section):
    """Results are computed and dropped, for measurements."""

    type: Cold[Literal["noop"]] = "noop"
    """This sink."""


class FunctionSinkConfig(Section):
    """A function of one's own, for the simple processor."""

    type: Cold[Literal["function"]] = "function"
    """This sink."""

    function: Cold[ImportPath]
    """The function that gets each batch or record."""


SinkConfig = Annotated[
    DeltaSinkConfig | JsonLinesSinkConfig | ConsoleSinkConfig | NoopSinkConfig | FunctionSinkConfig,
    Field(discriminator="type"),
]

#: The types of sinks that fit each type of processor; a custom processor has its own.
FITTING: dict[str, tuple[str, ...]] = {
    "spark": ("delta", "jsonl", "console", "noop"),
    "simple": ("function",),
    "custom": (),
}
