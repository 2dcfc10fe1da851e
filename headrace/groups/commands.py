"""What ``headrace group`` does, from a configuration to an exit code."""

from __future__ import annotations

import json
import sys
from threading import Event
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from headrace.groups.documents import document
from headrace.groups.lines import lines
from headrace.groups.looking import lookout
from headrace.groups.tables import show
from headrace.offsets.commands import EXIT_FAILED, channel_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.config import Config
    from headrace.groups.report import GroupReport


def group(config: Config, channel: str | None, *, as_json: bool, watch: float | None) -> int:
    """Print the groups of one channel or of all, once or every ``watch`` seconds until SIGINT.

    Returns 1 where ZooKeeper, Kafka or a sink did not answer, at the last look.
    """
    names = list(config.channels) if channel is None else [channel_name(config, channel)]
    code = 0
    try:
        with lookout(config) as clients:
            while True:
                reports = [clients.look(name) for name in names]
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
