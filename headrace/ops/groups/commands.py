"""The command ``headrace group``, from a configuration to an exit code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape
from rich.text import Text

from headrace.coordinators.group_nodes import MemberNode
from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.errors import HeadraceError
from headrace.core.positions import format_moment
from headrace.core.records import TopicPartition
from headrace.ops.admin.client import AdminClient, ClientOptions, find
from headrace.ops.admin.tables import partition_name
from headrace.ops.console import Column, duration, figures, numeric, print_look, repeated, table_of
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

    from rich.console import Console

    from headrace.config import Config
    from headrace.core.errors import ConfigError


def findings(found: dict[str, Any], more: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each thing in a document that may have to be looked into.

    It begins with its kind and a name, followed by ``key=value``. Values without blanks and quotes
    stand as they are, others as JSON strings; "-" is nothing.
    """
    for kind in ("unowned", "pending", "moving", "contended", "missing", "foreign"):
        for each in found[kind]:
            rest = {k: v for k, v in each.items() if k not in {"topic", "partition"}}
            yield _line(kind, partition_name(each), more | rest)
    if found["mixed_modes"]:
        yield _line("mixed_modes", ",".join(found["modes"]), more)
    for member in found["members_without_tasks"]:
        yield _line("member_without_tasks", member, more)
    for member in found["members_without_warm"]:
        yield _line("member_without_warm", member, more)
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
        console.print(table_of(found["members"], _MEMBERS))
    if found["partitions"]:
        console.print(table_of(found["partitions"], _PARTITIONS))
    for finding in findings(found, {}):
        console.print(Text(finding, style="yellow"))


def _field(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda each: text(each[name])


_MEMBERS: tuple[Column[dict[str, Any]], ...] = (
    Column("member", _field("name")),
    Column("host", _field("host")),
    numeric("pid", _field("pid")),
    Column("software", _field("software")),
    Column("since", _field("since")),
    Column("mode", _field("mode")),
    numeric("owned", _field("owned")),
    Column(
        "note", lambda each: each["problem"] or ("draining" if each["draining"] else ""), "yellow"
    ),
)


def _owner(each: dict[str, Any]) -> str:
    owner, member = text(each["owner"]), each["member"]
    return owner if member is None or member == each["owner"] else f"{owner} → {member}"


def _claim(each: dict[str, Any]) -> str:
    """Return the age of the present claim, or how the last one ended."""
    if each["claim_age_s"] is not None:
        return duration(each["claim_age_s"])
    if each["clean_end"] is None:
        return "-"
    return "clean end" if each["clean_end"] else "no clean end"


def _committed(each: dict[str, Any]) -> str:
    place = "" if each["committed_in"] in {None, "kafka"} else f" ({each['committed_in']})"
    return f"{text(each['committed_offset'])}{place}"


_PARTITIONS: tuple[Column[dict[str, Any]], ...] = (
    Column("partition", partition_name),
    Column("state", lambda each: Text(each["state"], style=_STYLES[each["state"]])),
    Column("owner", _owner),
    *figures(epoch="epoch"),
    Column("claim", _claim),
    numeric("committed", _committed),
    *figures(end="log_end", lag="lag"),
    Column("note", lambda each: "; ".join(each["notes"]), style="yellow"),
)


def document(report: GroupSnapshot) -> dict[str, Any]:
    """Return the report for scripts; null where something is not known or not there."""
    return {
        "channel": report.channel,
        "group": report.group,
        "taken_at": moment(report.taken_at),
        "state": report.activity.value,
        "members": [_member(each.facts()) for each in report.members],
        "partitions": [_partition(each, report.taken_at) for each in report.partitions],
        "unowned": [p.partition._asdict() for p in report.ownership(OwnershipState.UNOWNED)],
        "pending": [
            {**p.partition._asdict(), "member": p.meant_for}
            for p in report.ownership(OwnershipState.PENDING)
        ],
        "moving": [
            {**p.partition._asdict(), "owner": p.owner, "member": p.meant_for}
            for p in report.ownership(OwnershipState.MOVING)
        ],
        "contended": [{**p._asdict(), "members": list(m)} for p, m in report.contended.items()],
        "missing": [
            {**p._asdict(), "member": member} for member, ps in report.missing.items() for p in ps
        ],
        "foreign": [{**p._asdict(), "owner": owner} for p, owner in report.foreign.items()],
        "modes": sorted(mode.value for mode in report.modes),
        "mixed_modes": len(report.modes) > 1,
        "members_without_tasks": list(report.without_tasks),
        "members_without_warm": list(report.without_warm),
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
        **found.partition._asdict(),
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
        **dict.fromkeys(("log_start", "log_end", "lag")),
        **({} if offsets is None else offsets.log_facts()),
        "notes": list(found.notes),
    }


def claim_age(now: float, since: float) -> int:
    """Return whole seconds; the owner's clock may be ahead of ours."""
    return max(0, int(now - since))


def group(config: Config, channel: str | None, *, as_json: bool, watch: float | None) -> int:
    """Print the groups of one channel or of all, once or every ``watch`` seconds until SIGINT.

    Returns 1 where ZooKeeper, Kafka or a sink did not answer, at the last look.
    """
    names = list(config.channels) if channel is None else [channel_name(config, channel)]
    with group_reader(config) as clients:
        return _show_repeatedly(
            lambda: [clients.read_group(name) for name in names], as_json=as_json, watch=watch
        )


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
                return [
                    _known_snapshot(e, reason) for e in found if channel in {None, e["channel"]}
                ]

            return _show_repeatedly(look, as_json=as_json, watch=watch) if look() else None
    except HeadraceError:
        return None


def _known_snapshot(group: dict[str, Any], reason: str) -> GroupSnapshot:
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


def _show_repeatedly(
    look: Callable[[], list[GroupSnapshot]], *, as_json: bool, watch: float | None
) -> int:
    return repeated(lambda: _print(look(), as_json=as_json, watch=watch), watch)


def _print(reports: Sequence[GroupSnapshot], *, as_json: bool, watch: float | None) -> int:
    def draw(console: Console) -> None:
        for report in reports:
            show(report, console)

    print_look([document(each) for each in reports], draw, as_json=as_json, every=watch)
    # two channels mostly fail for the same reason, which need not be said twice
    errors = list(dict.fromkeys(error for report in reports for error in report.errors))
    for error in errors:
        typer.echo(error, err=True)
    return EXIT_FAILED if errors else 0
