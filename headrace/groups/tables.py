"""A group's report as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headrace.admin.tables import duration
from headrace.groups.documents import document
from headrace.groups.lines import findings, text, total_lag
from headrace.groups.report import Activity, Standing

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.groups.report import GroupReport

_STATES = {
    Activity.RUNNING: "running",
    Activity.STOPPED: "stopped: no members",
    Activity.NEVER_RUN: "has never run",
    Activity.UNKNOWN: "not known: ZooKeeper did not answer",
}

_STYLES = {
    Standing.OWNED.value: "green",
    Standing.MOVING.value: "cyan",
    Standing.PENDING.value: "yellow",
    Standing.UNOWNED.value: "yellow",
    Standing.FOREIGN.value: "red",
    Standing.UNKNOWN.value: "dim",
}


def show(report: GroupReport, console: Console) -> None:
    """Print the report."""
    found = document(report)
    console.print(
        f"[bold]{escape(report.channel)}[/] group {escape(report.group)} · "
        f"{_STATES[report.activity]} · lag {text(total_lag(report))} · {found['taken_at']}",
        highlight=False,
    )
    if found["members"]:
        console.print(_members(found["members"]))
    if found["partitions"]:
        console.print(_partitions(found["partitions"]))
    for finding in findings(report):
        console.print(Text(finding, style="yellow"))


def _members(members: list[dict[str, Any]]) -> Table:
    table = _table("member", "host", "pid", "software", "since", "mode", "owned", "note")
    for each in members:
        note = each["problem"] or ("draining" if each["draining"] else "")
        keys = ("name", "host", "pid", "software", "since", "mode", "owned")
        table.add_row(*(Text(text(each[key])) for key in keys), Text(note, style="yellow"))
    return table


def _partitions(partitions: list[dict[str, Any]]) -> Table:
    table = _table(
        "partition", "state", "owner", "epoch", "claim", "committed", "end", "lag", "note"
    )
    for each in partitions:
        table.add_row(
            Text(f"{each['topic']}-{each['partition']}"),
            Text(each["state"], style=_STYLES[each["state"]]),
            Text(_owner(each)),
            text(each["epoch"]),
            _claim(each),
            _committed(each),
            text(each["log_end"]),
            text(each["lag"]),
            Text("; ".join(each["notes"]), style="yellow"),
        )
    return table


def _owner(each: dict[str, Any]) -> str:
    owner, member = text(each["owner"]), each["member"]
    return owner if member is None or member == each["owner"] else f"{owner} → {member}"


def _claim(each: dict[str, Any]) -> str:
    """Say how old the present claim is, or how the last one ended."""
    if each["claim_age_s"] is not None:
        return duration(each["claim_age_s"])
    if each["clean_end"] is None:
        return "-"
    return "clean end" if each["clean_end"] else "no clean end"


def _committed(each: dict[str, Any]) -> str:
    place = "" if each["committed_in"] in {None, "kafka"} else f" ({each['committed_in']})"
    return f"{text(each['committed_offset'])}{place}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    numbers = {"pid", "owned", "epoch", "committed", "end", "lag"}
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left")
    return table
