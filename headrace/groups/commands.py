"""What ``headrace group`` does, from a configuration to an exit code."""

from __future__ import annotations

import json
import sys
from threading import Event
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from headrace.admin.client import AdminClient
from headrace.admin.finding import Options, find
from headrace.clock import SYSTEM_CLOCK
from headrace.errors import HeadraceError
from headrace.groups.documents import document
from headrace.groups.lines import lines
from headrace.groups.looking import lookout
from headrace.groups.report import (
    Activity,
    GroupReport,
    MemberReport,
    PartitionReport,
    Standing,
)
from headrace.groups.tables import show
from headrace.offsets.commands import EXIT_FAILED, channel_name
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headrace.config import Config
    from headrace.errors import ConfigError


def group(config: Config, channel: str | None, *, as_json: bool, watch: float | None) -> int:
    """Print the groups of one channel or of all, once or every ``watch`` seconds until SIGINT.

    Returns 1 where ZooKeeper, Kafka or a sink did not answer, at the last look.
    """
    names = list(config.channels) if channel is None else [channel_name(config, channel)]
    with lookout(config) as clients:
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
        with AdminClient(find(Options(file))) as client:

            def look() -> list[GroupReport]:
                found = client.get("/api/v1/members")["groups"]
                return [_known(e, reason) for e in found if channel in {None, e["channel"]}]

            return _shown(look, as_json=as_json, watch=watch) if look() else None
    except HeadraceError:
        return None


def _known(group: dict[str, Any], reason: str) -> GroupReport:
    """Return as a report what the API tells of a group."""
    partitions = [
        PartitionReport(
            TopicPartition(name.rpartition("-")[0], int(name.rpartition("-")[2])),
            Standing.UNKNOWN,
            owner or "",
        )
        for name, owner in group["owners"].items()
    ]
    return GroupReport(
        channel=group["channel"],
        group=group["group"],
        taken_at=SYSTEM_CLOCK.time(),
        activity=Activity.RUNNING,
        members=tuple(
            MemberReport(each["name"], None, each["problem"], each["owned"])
            for each in group["members"]
        ),
        partitions=tuple(sorted(partitions, key=lambda each: each.partition)),
        errors=(reason,),
    )


def _shown(look: Callable[[], list[GroupReport]], *, as_json: bool, watch: float | None) -> int:
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


def _print(reports: Sequence[GroupReport], *, as_json: bool, watch: float | None) -> None:
    if as_json:
        # one line for each look of several, so that a script can tell them apart
        indent = 2 if watch is None else None
        typer.echo(json.dumps([document(report) for report in reports], indent=indent))
    elif sys.stdout.isatty():
        console = Console()
        if watch is not None:
            console.clear()
        for report in reports:
            show(report, console)
    else:
        typer.echo("\n".join(line for report in reports for line in lines(report)))
    sys.stdout.flush()
    # two channels mostly fail for the same reason, which need not be said twice
    for error in dict.fromkeys(error for report in reports for error in report.errors):
        typer.echo(error, err=True)
