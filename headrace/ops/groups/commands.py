"""What ``headrace group`` does, from a configuration to an exit code."""

from __future__ import annotations

import json
import sys
from threading import Event
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from headrace.coordinators.group_nodes import MemberNode
from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.errors import HeadraceError
from headrace.core.positions import format_moment
from headrace.core.records import TopicPartition
from headrace.ops.admin.client import AdminClient, ClientOptions, find
from headrace.ops.admin.tables import duration, plain_table
from headrace.ops.groups.report import (
    GroupActivity,
    GroupSnapshot,
    OwnershipState,
    PartitionReport,
    group_reader,
)
from headrace.ops.offsets.commands import EXIT_FAILED, channel_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rich.table import Table

    from headrace.config import Config
    from headrace.core.errors import ConfigError


#: More than any row takes: a terminal breaks long lines by itself, others want them whole.
_WIDTH = 10_000


def findings(found: dict[str, Any], more: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each thing in a document that may have to be looked into.

    It begins with its kind and a name, followed by ``key=value``. Values without blanks and quotes
    stand as they are, others as JSON strings; "-" is nothing.
    """
    for kind in ("unowned", "pending", "moving", "contended", "missing", "foreign"):
        for each in found[kind]:
            rest = {k: v for k, v in each.items() if k not in {"topic", "partition"}}
            yield _line(kind, _named(each), more | rest)
    if found["mixed_modes"]:
        yield _line("mixed_modes", ",".join(found["modes"]), more)
    for topic in found["unknown_topics"]:
        yield _line("unknown_topic", topic, more)
    for note in found["notes"]:
        yield _line("note", note, more)


def text(value: Any) -> str:
    """Return a value as it stands in a line."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return text(",".join(value))
    written = str(value)
    plain = written.isprintable() and not set(written) & set(" \"'=")
    return written if plain else json.dumps(written, ensure_ascii=False)


def _line(kind: str, name: str, values: dict[str, Any]) -> str:
    return " ".join([kind, text(name), *(f"{k}={text(v)}" for k, v in values.items())])


def _named(each: dict[str, Any]) -> str:
    return f"{each['topic']}-{each['partition']}"


_STATES = {
    GroupActivity.RUNNING: "running",
    GroupActivity.STOPPED: "stopped: no members",
    GroupActivity.NEVER_RUN: "has never run",
    GroupActivity.UNKNOWN: "not known: ZooKeeper did not answer",
}

_STYLES = {
    OwnershipState.OWNED.value: "green",
    OwnershipState.MOVING.value: "cyan",
    OwnershipState.PENDING.value: "yellow",
    OwnershipState.UNOWNED.value: "yellow",
    OwnershipState.FOREIGN.value: "red",
    OwnershipState.UNKNOWN.value: "dim",
}


def show(report: GroupSnapshot, console: Console) -> None:
    """Print the report."""
    found = document(report)
    console.print(
        f"[bold]{escape(report.channel)}[/] group {escape(report.group)} · "
        f"{_STATES[report.activity]} · lag {text(report.lag)} · {found['taken_at']}",
        highlight=False,
    )
    if found["members"]:
        console.print(_members(found["members"]))
    if found["partitions"]:
        console.print(_partitions(found["partitions"]))
    for finding in findings(found, {}):
        console.print(Text(finding, style="yellow"))


def _members(members: list[dict[str, Any]]) -> Table:
    columns = ("member", "host", "pid", "software", "since", "mode", "owned", "note")
    table = plain_table(*columns, right={"pid", "owned"})
    for each in members:
        note = each["problem"] or ("draining" if each["draining"] else "")
        keys = ("name", "host", "pid", "software", "since", "mode", "owned")
        table.add_row(*(Text(text(each[key])) for key in keys), Text(note, style="yellow"))
    return table


def _partitions(partitions: list[dict[str, Any]]) -> Table:
    columns = ("partition", "state", "owner", "epoch", "claim", "committed", "end", "lag", "note")
    table = plain_table(*columns, right={"epoch", "committed", "end", "lag"})
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


def document(report: GroupSnapshot) -> dict[str, Any]:
    """Return the report for scripts; null where something is not known or not there."""
    return {
        "channel": report.channel,
        "group": report.group,
        "taken_at": moment(report.taken_at),
        "state": report.activity.value,
        "members": [_member(each.facts()) for each in report.members],
        "partitions": [_partition(each, report.taken_at) for each in report.partitions],
        "unowned": [_name(p.partition) for p in report.ownership(OwnershipState.UNOWNED)],
        "pending": [
            {**_name(p.partition), "member": p.meant_for}
            for p in report.ownership(OwnershipState.PENDING)
        ],
        "moving": [
            {**_name(p.partition), "owner": p.owner, "member": p.meant_for}
            for p in report.ownership(OwnershipState.MOVING)
        ],
        "contended": [{**_name(p), "members": list(m)} for p, m in report.contended.items()],
        "missing": [
            {**_name(p), "member": member} for member, ps in report.missing.items() for p in ps
        ],
        "foreign": [{**_name(p), "owner": owner} for p, owner in report.foreign.items()],
        "modes": sorted(mode.value for mode in report.modes),
        "mixed_modes": len(report.modes) > 1,
        "unknown_topics": list(report.unknown_topics),
        "errors": list(report.errors),
        "notes": list(report.notes),
    }


def moment(seconds: float) -> str:
    """Return a time in UTC, to the second."""
    return format_moment(int(seconds) * 1000)


def _member(facts: dict[str, Any]) -> dict[str, Any]:
    return facts | {"since": None if facts["since"] is None else moment(facts["since"])}


def _partition(found: PartitionReport, now: float) -> dict[str, Any]:
    claim, latest, offsets = found.claim, found.latest, found.offsets
    return {
        **_name(found.partition),
        "state": found.ownership.value,
        "owner": found.owner,
        "member": found.meant_for,
        "epoch": found.epoch,
        "claimed_at": None if claim is None else moment(claim.since),
        "claim_age_s": None if claim is None else claim_age(now, claim.since),
        "last_owner": None if latest is None else latest.member,
        "clean_end": None if latest is None or found.owner is not None else latest.clean_end,
        "committed_offset": None if offsets is None else offsets.next,
        "committed_in": None if found.kept_in is None else found.kept_in.value,
        "log_start": None if offsets is None else offsets.low,
        "log_end": None if offsets is None else offsets.high,
        "lag": None if offsets is None else offsets.lag,
        "notes": list(found.notes),
    }


def claim_age(now: float, since: float) -> int:
    """Return whole seconds; the owner's clock may be ahead of ours."""
    return max(0, int(now - since))


def _name(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def group(config: Config, channel: str | None, *, as_json: bool, watch: float | None) -> int:
    """Print the groups of one channel or of all, once or every ``watch`` seconds until SIGINT.

    Returns 1 where ZooKeeper, Kafka or a sink did not answer, at the last look.
    """
    names = list(config.channels) if channel is None else [channel_name(config, channel)]
    with group_reader(config) as clients:
        return _shown(lambda: [clients.look(name) for name in names], as_json=as_json, watch=watch)


def group_of_process(
    file: Path, unusable: ConfigError, channel: str | None, *, as_json: bool, watch: float | None
) -> int | None:
    """Print what the process of a file that cannot be used knows of its groups, as ``group`` does.

    That is members and owners, without offsets: exit code 1. Returns None where no process of the
    file runs, or it has no such channel.
    """
    reason = (
        f"{file} cannot be used ({unusable.problems[0]}), so that Kafka was not asked; this is "
        "what the process that runs with it knows"
    )
    try:
        with AdminClient(find(ClientOptions(file))) as client:

            def look() -> list[GroupSnapshot]:
                found = client.get("/api/v1/members")["groups"]
                return [_known(e, reason) for e in found if channel in {None, e["channel"]}]

            return _shown(look, as_json=as_json, watch=watch) if look() else None
    except HeadraceError:
        return None


def _known(group: dict[str, Any], reason: str) -> GroupSnapshot:
    """Return as a report what the API tells of a group."""
    partitions = [
        PartitionReport(
            TopicPartition(name.rpartition("-")[0], int(name.rpartition("-")[2])),
            OwnershipState.UNKNOWN,
            owner or "",
        )
        for name, owner in group["owners"].items()
    ]
    return GroupSnapshot(
        channel=group["channel"],
        group=group["group"],
        taken_at=SYSTEM_CLOCK.time(),
        activity=GroupActivity.RUNNING,
        members=tuple(
            MemberNode(each["name"], None, each["problem"], each["owned"])
            for each in group["members"]
        ),
        partitions=tuple(sorted(partitions, key=lambda each: each.partition)),
        errors=(reason,),
    )


def _shown(look: Callable[[], list[GroupSnapshot]], *, as_json: bool, watch: float | None) -> int:
    code = 0
    try:
        while True:
            reports = look()
            _print(reports, as_json=as_json, watch=watch)
            code = EXIT_FAILED if any(report.errors for report in reports) else 0
            if watch is None:
                return code
            Event().wait(watch)
    except KeyboardInterrupt:
        return code


def _print(reports: Sequence[GroupSnapshot], *, as_json: bool, watch: float | None) -> None:
    if as_json:
        # one line for each look of several, so that a script can tell them apart
        indent = 2 if watch is None else None
        typer.echo(json.dumps([document(report) for report in reports], indent=indent))
    else:
        is_terminal = sys.stdout.isatty()
        console = Console(width=None if is_terminal else _WIDTH, soft_wrap=not is_terminal)
        if watch is not None and is_terminal:
            console.clear()
        for report in reports:
            show(report, console)
    sys.stdout.flush()
    # two channels mostly fail for the same reason, which need not be said twice
    for error in dict.fromkeys(error for report in reports for error in report.errors):
        typer.echo(error, err=True)
