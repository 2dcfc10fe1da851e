"""``headrace dead-letters list|replay``.

Exit codes: 0 done; 1 failed, and the message says what was replayed; 2 the configuration or the
command line cannot be used, and nothing was replayed.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.core.options import ConfigFile, command_group
from headrace.core.positions import parse_moment

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headrace.ops.dead_letters.commands import LetterFilter

app = command_group(
    help="List a channel's dead letters, or replay them to where they came from, each once.",
)

_Channel = Annotated[
    str | None,
    typer.Option("--channel", metavar="NAME", help="The channel, if several have dead letters."),
]
_LetterTopic = Annotated[
    str | None,
    typer.Option(
        "--dead-letter-topic",
        metavar="TOPIC",
        help="Read all of this topic, instead of the one that the channel names.",
    ),
]
_Letter = Annotated[
    list[str] | None,
    typer.Option(
        "--letter",
        metavar="PARTITION:OFFSET",
        help="Only this letter, as list shows it; may be repeated.",
    ),
]
_Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC[:N,N]",
        help="Only records of this topic, or of these partitions of it; may be repeated.",
    ),
]
_Offsets = Annotated[
    str | None,
    typer.Option("--offset", metavar="N[-N]", help="Only records with this offset, or with these."),
]
_Reason = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Only letters whose error class or message contains this."),
]
_Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Only letters from this time on, as in 2030-01-01T05:00:00Z."
    ),
]
_Until = Annotated[str | None, typer.Option(metavar="TIME", help="Only letters before this time.")]


class Grouping(Enum):
    """The property by which letters are counted."""

    ERROR = "error"
    """The error's class, and the code that its message has."""


_Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts, one line per letter.")]


@app.command(name="list")
def list_(
    config: ConfigFile,
    channel: _Channel = None,
    *,
    dead_letter_topic: _LetterTopic = None,
    letter: _Letter = None,
    topic: _Topics = None,
    offset: _Offsets = None,
    reason: _Reason = None,
    since: _Since = None,
    until: _Until = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="At most this many letters.")
    ] = 100,
    pending: Annotated[
        bool, typer.Option("--pending", help="Only letters that replay would produce.")
    ] = False,
    values: Annotated[bool, typer.Option("--values", help="Show the records' values too.")] = False,
    by: Annotated[
        Grouping | None,
        typer.Option(help="Count the letters by error, and show one of each, with no limit."),
    ] = None,
    json: _Json = False,
) -> None:
    """List dead letters: their origin, time and error, and whether they were replayed.

    Reads the whole topic and changes nothing. Masks what admin.redact names in keys, values and
    headers; error messages are shown in full, even if they quote a record.
    """
    from headrace.ops.dead_letters import commands  # noqa: PLC0415 - takes a second to import

    if by is not None and values:
        raise typer.BadParameter("has no effect with --by; leave it out", param_hint="--values")
    wanted = _filter(letter, topic, offset, reason, since, until)
    _run(
        config,
        lambda loaded: commands.list_letters(
            commands.LetterTopic.of(loaded, channel, dead_letter_topic),
            wanted,
            limit,
            pending=pending,
            values=values,
            by_error=by is not None,
            as_json=json,
        ),
    )


@app.command()
def replay(
    config: ConfigFile,
    channel: _Channel = None,
    *,
    dead_letter_topic: _LetterTopic = None,
    letter: _Letter = None,
    topic: _Topics = None,
    offset: _Offsets = None,
    reason: _Reason = None,
    since: _Since = None,
    until: _Until = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Produce to this topic, by key; by default to each record's own partition.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="At most this many letters.")
    ] = 1000,
    again: Annotated[
        bool, typer.Option("--again", help="Include letters that were replayed before.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be replayed and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: _Json = False,
) -> None:
    """Produce the records of dead letters again, as they were, each at most once.

    Notes in the same transaction which ones were produced, so the command may be repeated, or go on
    after it was killed. It shows its plan and asks.
    """
    from headrace.ops.dead_letters import commands  # noqa: PLC0415 - takes a second to import

    if json and not (yes or dry_run):
        raise typer.BadParameter(
            "takes --yes or --dry-run: there is no prompt", param_hint="--json"
        )
    wanted = _filter(letter, topic, offset, reason, since, until)
    _run(
        config,
        lambda loaded: commands.replay(
            commands.LetterTopic.of(loaded, channel, dead_letter_topic),
            wanted,
            limit,
            to,
            again=again,
            dry_run=dry_run,
            yes=yes,
            as_json=json,
        ),
    )


def _run(config: Any, command: Callable[[Any], None]) -> None:
    from headrace.ops.offsets.commands import guarded  # noqa: PLC0415 - takes a second to import

    raise typer.Exit(guarded(config, command))


def _filter(  # noqa: PLR0917 - one for each option
    letters: list[str] | None,
    topics: list[str] | None,
    offsets: str | None,
    reason: str | None,
    since: str | None,
    until: str | None,
) -> LetterFilter:
    from headrace.ops.dead_letters import commands  # noqa: PLC0415 - takes a second to import
    from headrace.ops.offsets.reader import parse_selection  # noqa: PLC0415 - takes a second to import

    def parsed(option: str, parse: Callable[[str], Any], text: str | None) -> Any:
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=option) from None

    return commands.LetterFilter(
        letters=frozenset(
            parsed("--letter", commands.parse_letter, each) for each in letters or []
        ),
        topics=tuple(parsed("--topic", parse_selection, each) for each in topics or []),
        offsets=parsed("--offset", commands.parse_offsets, offsets),
        reason=reason,
        since=parsed("--since", parse_moment, since),
        until=parsed("--until", parse_moment, until),
    )
