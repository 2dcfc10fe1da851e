"""``headrace offsets show|reset|export|import``.

Exit codes: 0 done; 1 failed, and the message says what was changed; 2 the configuration, the
command line or the file cannot be used; 3 the channel runs. After 2 and 3 nothing was changed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from headrace.core.options import ConfigFile, command_group
from headrace.core.positions import FORMS, Replay, parse_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.ops.offsets.reader import TopicSelection

T = TypeVar("T")

app = command_group(
    help="Show a channel's offsets, or move those of a stopped one: the group's and its sink's.",
)

_Channel = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The channel, if the configuration has several."),
]
_Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC[:N,N]",
        help="Only this topic, or these partitions of it; may be repeated.",
    ),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
_Replay = Annotated[
    Replay | None,
    typer.Option(
        metavar="append|replace",
        help="What happens to the sink's output of records that are read again: append keeps it, "
        "replace removes it with the move.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.command()
def show(
    config: ConfigFile, channel: _Channel = None, topic: _Topics = None, *, json: _Json = False
) -> None:
    """Show offsets of the group and of the sink, the log's ends and the lag. Changes nothing."""
    from headrace.ops.offsets import commands  # noqa: PLC0415 - takes a second to import

    choices = _choices(topic)
    command = partial(commands.show, channel=channel, choices=choices, as_json=json)
    raise typer.Exit(commands.guarded(config, command))


@app.command()
def reset(
    config: ConfigFile,
    to: Annotated[str, typer.Option(metavar="WHERE", help=f"{FORMS[:1].upper()}{FORMS[1:]}.")],
    channel: _Channel = None,
    topic: _Topics = None,
    replay: _Replay = None,
    *,
    dry_run: _DryRun = False,
    json: _Json = False,
) -> None:
    """Move the offsets of a stopped channel.

    TIME, as in 2013-01-01T05:00:00Z, means the first record that is not older; it is in UTC unless
    it has an offset. Offsets outside of the log are clamped to it. Prints the move of each
    partition.
    """
    from headrace.ops.offsets import commands  # noqa: PLC0415 - takes a second to import

    target = _parsed(parse_target, to, "--to")
    choices = _choices(topic)
    command = partial(
        commands.reset,
        channel=channel,
        target=target,
        choices=choices,
        replay=replay,
        dry_run=dry_run,
        as_json=json,
    )
    raise typer.Exit(commands.guarded(config, command))


@app.command()
def export(
    config: ConfigFile,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The file to write, in YAML; - for standard output.",
            dir_okay=False,
        ),
    ],
    channel: _Channel = None,
    topic: _Topics = None,
) -> None:
    """Write the offsets at which the channel would continue to a file, for import."""
    from headrace.ops.offsets import commands  # noqa: PLC0415 - takes a second to import

    choices = _choices(topic)
    command = partial(commands.export, channel=channel, choices=choices, file=file)
    raise typer.Exit(commands.guarded(config, command))


@app.command(name="import")
def import_(
    config: ConfigFile,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file that export wrote; - for standard input.")
    ],
    channel: _Channel = None,
    replay: _Replay = None,
    *,
    dry_run: _DryRun = False,
    json: _Json = False,
) -> None:
    """Move the offsets of a stopped channel to those in a file, all of them or none."""
    from headrace.ops.offsets import commands  # noqa: PLC0415 - takes a second to import

    command = partial(
        commands.import_offsets,
        channel=channel,
        file=file,
        replay=replay,
        dry_run=dry_run,
        as_json=json,
    )
    raise typer.Exit(commands.guarded(config, command))


def _choices(topics: list[str] | None) -> list[TopicSelection]:
    from headrace.ops.offsets.reader import parse_selection  # noqa: PLC0415 - imports the client

    return [_parsed(parse_selection, text, "--topic") for text in topics or []]


def _parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
