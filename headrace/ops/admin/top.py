"""``headrace top``: the channels of a process as a table that goes on."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from operator import itemgetter
from threading import Event
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.errors import UnreachableError
from headrace.ops.admin.tables import OPERATORS, STANDBYS, catch_up, partition_name, state_word
from headrace.ops.console import Column, duration, numeric, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, RenderableType

    from headrace.core.clock import Clock
    from headrace.ops.admin.client import AdminClient

#: The stage that each delivery of a batch counts in.
_BATCHES = "on_next_batch"

_MIB = 1 << 20


class Top:
    """Looks at a process again and again. ``partitions`` bounds those that are shown."""

    def __init__(self, console: Console, *, partitions: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._console = console
        self._partitions = partitions
        self._clock = clock
        self._before: dict[str, tuple[float, float]] = {}
        self._last: RenderableType = Text("")
        self._answered = clock.monotonic()

    def run(self, client: AdminClient, *, every: float, once: bool, as_json: bool) -> int:
        """Show the process once, or every so many seconds until Ctrl-C. Blocks.

        On a terminal a process that does not answer is waited for.

        Raises:
            UnreachableError: it does not answer, and the output is no terminal.
        """
        is_live = self._console.is_terminal and not (once or as_json)
        with ExitStack() as stack:
            live = None
            if is_live:
                live = Live(console=self._console, screen=True, auto_refresh=False)
                stack.enter_context(live)
            while True:
                try:
                    found = client.get("/api/v1/status")
                except UnreachableError as error:
                    if live is None:
                        raise
                    live.update(self._silent(error), refresh=True)
                else:
                    self._show(found, live, as_json=as_json)
                if once:
                    return 0
                Event().wait(every)

    def _show(self, found: dict[str, Any], live: Live | None, *, as_json: bool) -> None:
        if as_json:
            channels = list(self._figures(found))
            typer.echo(json.dumps({"at": found["at"], "channels": channels}))
            sys.stdout.flush()
            return
        self._last = self.table(found)
        self._answered = self._clock.monotonic()
        if live is None:
            self._console.print(self._last)
            sys.stdout.flush()
        else:
            live.update(self._last, refresh=True)

    def _silent(self, error: UnreachableError) -> RenderableType:
        """Return what was seen last, and since when nothing came after it."""
        ago = duration(self._clock.monotonic() - self._answered)
        return Group(Text(f"no answer for {ago}: {error}", style="red"), self._last)

    def table(self, found: dict[str, Any]) -> RenderableType:
        """Return what there is to see in a status."""
        process = found["process"]
        head = Text.assemble(
            (process["instance_id"], "bold"),
            f" · {process['phase']} for {duration(process['uptime_s'])} · ZooKeeper ",
            state_word(found["zookeeper"]["state"]),
            f" · {found['at']}",
        )
        reasons = [Text(f"not ready: {each}", style="red") for each in found["not_ready_because"]]
        return Group(
            head,
            *reasons,
            table_of(self._figures(found), _CHANNELS),
            *_of_operators(found),
            *_of_standbys(found),
            Text(""),
            self._of_partitions(found),
        )

    def _figures(self, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield what is shown of each channel; rates are those since the last look."""
        now = self._clock.monotonic()
        for channel in found["channels"]:
            totals, name = channel["totals"], channel["name"]
            waits = [each["lag_s"] for each in channel["partitions"] if each["lag_s"] is not None]
            stages = {each["stage"]: each["per_s"] for each in channel["stages"]}
            before = self._before.get(name)
            self._before[name] = (now, totals["records"])
            # the first look has the last minute's; a process that was started again counts from 0
            rate = totals["records_per_s"]
            if before is not None and totals["records"] >= before[1] and now > before[0]:
                rate = round((totals["records"] - before[1]) / (now - before[0]), 1)
            yield {
                "name": name,
                "state": "paused" if channel["paused"] else channel["state"],
                "failure": channel["failure"],
                "lag": totals["lag"],
                "lag_s": max(waits, default=None),
                # a process of a former version has neither
                "catch_up_s": totals.get("catch_up_s"),
                "lag_per_s": totals.get("lag_per_s", 0.0),
                "records_per_s": rate,
                "batches_per_s": stages.get(_BATCHES, 0.0),
                "errors": totals["errors"],
                "dead_letters": totals["dead_letters"],
                "skipped_records": totals["skipped_records"],
                "held_bytes": totals["held_bytes"],
                "held": len(channel["partitions"]),
                "partitions": sum(channel["topics"].values()),
                "operators": _operators_of(channel),
                "lag_by_partition": {
                    partition_name(each): each["lag"] for each in channel["partitions"]
                },
            }

    def _of_partitions(self, found: dict[str, Any]) -> RenderableType:
        """Return the partitions with the greatest lag."""
        held = [(each["name"], one) for each in found["channels"] for one in each["partitions"]]
        held.sort(key=lambda pair: (-(pair[1]["lag"] or 0), pair[1]["topic"], pair[1]["partition"]))
        columns = _PARTITIONS if len(found["channels"]) > 1 else _PARTITIONS[1:]
        table = table_of(held[: self._partitions], columns)
        left = len(held) - self._partitions
        if left <= 0:
            return table
        return Group(table, Text(f"and {left} partitions with less lag", style="dim"))


def _operators_of(channel: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the operators of a topology's channel; a process of a former version has none."""
    return list((channel.get("state_by_key") or {}).get("operators") or ())


def _of_operators(found: dict[str, Any]) -> list[RenderableType]:
    """Return the operators of topologies, nothing where there are none."""
    rows = [
        (channel["name"], each) for channel in found["channels"] for each in _operators_of(channel)
    ]
    return [Text(""), table_of(rows, _OPERATORS)] if rows else []


def _of_standbys(found: dict[str, Any]) -> list[RenderableType]:
    """Return the copies that are kept of others' partitions, nothing where there are none."""
    rows = [
        (channel["name"], each)
        for channel in found["channels"]
        # a process of a former version has none
        for each in (channel.get("state_by_key") or {}).get("standbys") or ()
    ]
    return [Text(""), table_of(rows, _STANDBYS)] if rows else []


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else duration(seconds)


def _count(name: str) -> Callable[[dict[str, Any]], Text]:
    return lambda each: Text(f"{each[name]:,}", style="red" if each[name] else "")


_CHANNELS: tuple[Column[dict[str, Any]], ...] = (
    Column("channel", itemgetter("name"), style="bold"),
    Column("state", lambda each: state_word(each["state"])),
    numeric("lag", lambda each: f"{each['lag']:,}"),
    numeric("waits", lambda each: _seconds(each["lag_s"])),
    numeric(
        "catches up", lambda each: catch_up(each["lag"], each["catch_up_s"], each["lag_per_s"])
    ),
    numeric("records/s", lambda each: f"{each['records_per_s']:,.1f}"),
    numeric("batches/s", lambda each: f"{each['batches_per_s']:,.1f}"),
    numeric("errors", _count("errors")),
    numeric("dead", _count("dead_letters")),
    numeric("skipped", _count("skipped_records")),
    numeric("MiB", lambda each: f"{each['held_bytes'] / _MIB:,.1f}"),
    Column("partitions", lambda each: f"{each['held']} of {each['partitions']}"),
)

#: Of a channel's name and a partition of it.
_PARTITIONS: tuple[Column[tuple[str, dict[str, Any]]], ...] = (
    Column("channel", itemgetter(0)),
    Column("partition", lambda pair: partition_name(pair[1])),
    Column("state", lambda pair: state_word(pair[1]["state"])),
    numeric("lag", lambda pair: None if pair[1]["lag"] is None else f"{pair[1]['lag']:,}"),
    numeric("waits", lambda pair: _seconds(pair[1]["lag_s"])),
    numeric("records/s", lambda pair: f"{pair[1]['records_per_s']:,.1f}"),
    numeric("position", lambda pair: pair[1]["position"]),
    numeric("end", lambda pair: pair[1]["end"]),
    Column("last error", lambda pair: _error(pair[1])),
)


def _of_second(column: Column[dict[str, Any]]) -> Column[tuple[str, dict[str, Any]]]:
    """Return the column for pairs, of which the second is what it is of."""
    return Column(
        column.title, lambda pair: column.cell(pair[1]), column.style, is_number=column.is_number
    )


#: Of a channel's name and an operator of it.
_OPERATORS: tuple[Column[tuple[str, dict[str, Any]]], ...] = (
    Column("channel", itemgetter(0)),
    *(_of_second(column) for column in OPERATORS),
)


#: Of a channel's name and a copy that it keeps.
_STANDBYS: tuple[Column[tuple[str, dict[str, Any]]], ...] = (
    Column("channel", itemgetter(0)),
    *(_of_second(column) for column in STANDBYS),
)


def _error(each: dict[str, Any]) -> Text:
    return Text(" ".join((each["last_error"] or "").split()), style="red", no_wrap=True)
