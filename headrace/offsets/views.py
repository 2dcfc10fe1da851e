"""Offsets and plans as a table for people and as JSON for scripts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

#: More than any row takes: a terminal breaks long lines by itself, others want them whole.
_WIDTH = 10_000

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.offsets.planning import Change, Plan
    from headrace.offsets.reading import PartitionOffsets


def offsets_table(found: Sequence[PartitionOffsets]) -> None:
    """Print where a channel's partitions stand."""
    table = _table("topic", "partition", "group", "epoch", "sink", "first", "end", "lag", "note")
    for offsets in found:
        table.add_row(
            offsets.partition.topic,
            str(offsets.partition.partition),
            _number(None if offsets.group is None else offsets.group.offset),
            _number(None if offsets.group is None else offsets.group.epoch),
            _number(offsets.sink),
            str(offsets.low),
            str(offsets.high),
            _number(lag(offsets)),
            "; ".join(remarks(offsets)),
        )
    _print(table)


def offsets_json(found: Sequence[PartitionOffsets]) -> list[dict[str, Any]]:
    """Return the same for scripts; null where there is nothing."""
    return [
        {
            **_name(offsets),
            "group_offset": None if offsets.group is None else offsets.group.offset,
            "epoch": None if offsets.group is None else offsets.group.epoch,
            "sink_offset": offsets.sink,
            "next_offset": offsets.next,
            "log_start": offsets.low,
            "log_end": offsets.high,
            "lag": lag(offsets),
            "notes": remarks(offsets),
        }
        for offsets in found
    ]


def plan_table(plan: Plan) -> None:
    """Print what becomes of each partition."""
    table = _table("topic", "partition", "old", "new", "records", "note")
    for change in plan:
        old, new = change.found.next, change.after
        table.add_row(
            change.found.partition.topic,
            str(change.found.partition.partition),
            _number(old),
            _number(new),
            "" if old is None or new is None else f"{new - old:+d}" if new != old else "",
            "; ".join((*change.notes, *disagreement(change.found))),
        )
    _print(table)


def plan_json(plan: Plan) -> list[dict[str, Any]]:
    """Return the same for scripts."""
    return [_change(change) for change in plan]


def print_json(document: object) -> None:
    """Print JSON on standard output."""
    typer.echo(json.dumps(document, indent=2))


def lag(offsets: PartitionOffsets) -> int | None:
    """Return how many offsets a start has before it, None where its policies decide."""
    if offsets.next is None or not offsets.low <= offsets.next <= offsets.high:
        return None
    return offsets.high - offsets.next


def remarks(offsets: PartitionOffsets) -> list[str]:
    """Return what a reader of the numbers should know."""
    notes = disagreement(offsets)
    if offsets.is_of_former_topic and offsets.sink is None:
        notes.append("the group's offset is of a former topic of that name: the first record")
    elif offsets.next is None:
        notes.append("no offset yet: initial_offset decides")
    elif not offsets.low <= offsets.next <= offsets.high:
        notes.append("outside of the log: offset_out_of_range decides")
    return notes


def disagreement(offsets: PartitionOffsets) -> list[str]:
    """Say that sink and group differ, and which of them counts."""
    group = None if offsets.group is None else offsets.group.offset
    if offsets.sink in {None, group}:
        return []
    return ["the sink's offset counts, not the group's"]


def _change(change: Change) -> dict[str, Any]:
    group = change.found.group
    return {
        **_name(change.found),
        "old_offset": change.found.next,
        "new_offset": change.after,
        "group_offset": None if group is None else group.offset,
        "sink_offset": change.found.sink,
        "changes": change.moves,
        "notes": [*change.notes, *disagreement(change.found)],
    }


def _name(offsets: PartitionOffsets) -> dict[str, Any]:
    return {"topic": offsets.partition.topic, "partition": offsets.partition.partition}


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in {"topic", "note"} else "right")
    return table


def _print(table: Table) -> None:
    Console(soft_wrap=True, width=_WIDTH).print(table)
