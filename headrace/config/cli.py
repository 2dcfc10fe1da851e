"""The output of commands about a configuration: problems and guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from headrace.config.derived import continued
from headrace.config.guarantee import guarantee

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.config.models.root import Config
    from headrace.core.errors import ConfigError

#: The exit code of a configuration that cannot be used.
EXIT_CONFIG = 2


def report(file: Path, error: ConfigError) -> None:
    """Print what is wrong with ``file`` on standard error, one problem a line."""
    count = error.count
    typer.echo(f"{file}: {count} problem{'' if count == 1 else 's'}", err=True)
    for problem in error.problems:
        typer.echo(f"  {problem}", err=True)


def guarantees(config: Config) -> list[str]:
    """Return one line for each channel: what it promises, and which others it goes on from."""
    return [
        "; ".join(
            [
                f"{name}: {guarantee(channel)}",
                *channel.processor.notes(channel),
                *_continues(name, config),
            ]
        )
        for name, channel in config.channels.items()
    ]


def _continues(name: str, config: Config) -> Iterator[str]:
    """Yield which channels a channel reads the output of."""
    for other, topics in continued(name, config.channels).items():
        yield f"continues {other}, which writes {', '.join(topics)}"


def print_table(config: Config) -> None:
    """Print the same for people."""
    table = Table("channel", "delivery", "because")
    for name, channel in config.channels.items():
        promise = guarantee(channel)
        reason = "; ".join(
            [promise.reason, *channel.processor.notes(channel), *_continues(name, config)]
        )
        table.add_row(name, promise.delivery.value, reason)
    Console().print(table)
