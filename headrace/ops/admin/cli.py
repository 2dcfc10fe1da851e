"""``headrace status|top|tap|pause|resume|acknowledge|seek|skip|reload|loglevel|stop|health``.

Exit codes: 0 done; 1 refused or failed, and the message says why; 2 the configuration or the
command line cannot be used; 3 the process does not run, or does not answer; 4 asked for, but not
done within the wait.
"""

from __future__ import annotations

import inspect
import re
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.core.options import ConfigFile, command_group, config_option
from headrace.core.positions import FORMS, Replay, format_moment, parse_moment, parse_target
from headrace.core.usual_file import NAME, usual_file
from headrace.health import LEAST_TIMEOUT, TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.ops.admin.client import ClientOptions
    from headrace.ops.admin.commands import Command


_Config = Annotated[
    Path | None,
    config_option(
        "The configuration of the process, if it runs on this machine.",
        show_default=f"{NAME} in this folder",
    ),
]
_Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="HEADRACE_URL",
        help="The address of the process's API, instead of -c.",
    ),
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="HEADRACE_TOKEN_FILE",
        help="A file that contains its token; HEADRACE_TOKEN may contain the token.",
    ),
]
_Ca = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", envvar="HEADRACE_CA_FILE", help="The certificates to trust, with https."
    ),
]
_Certificate = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="HEADRACE_CERTIFICATE_FILE",
        help="A client certificate with its key, instead of the token.",
    ),
]


def _options(
    config: _Config = None,
    url: _Url = None,
    token_file: _TokenFile = None,
    ca_file: _Ca = None,
    certificate_file: _Certificate = None,
) -> None:
    """Declare the common options, for use in other signatures."""


def connected(
    command: Callable[..., Command],
    instead: Callable[[ClientOptions, dict[str, Any]], int | None] = lambda *_: None,
) -> Callable[..., None]:
    """Return what typer runs: the options that ``command`` takes, and those above.

    ``command`` returns what is to be done with the process, and the exit code is that of this.
    ``instead`` may do without a process, by what the command was told, and return the exit code.
    """
    # what is only imported for the type checker stands in no option
    own = inspect.signature(command, eval_str=True, globals=_names(command))
    common = inspect.signature(_options, eval_str=True)
    parameters = [*own.parameters.values(), *common.parameters.values()]

    @wraps(command)
    def run(**arguments: Any) -> None:
        from headrace.ops.admin import client, commands  # noqa: PLC0415 - takes a moment to import

        given = {name: arguments.pop(name) for name in common.parameters}
        if given["url"] is None:
            given["config"] = given["config"] or usual_file()
        options = client.ClientOptions(**given)
        code = instead(options, arguments)
        raise typer.Exit(commands.run(options, command(**arguments)) if code is None else code)

    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer asks for it
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    return run


def _names(command: Callable[..., Command]) -> dict[str, Any]:
    """Return the names that the annotations of ``command`` are made of."""
    return {**command.__globals__, "Command": None}


_Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON for scripts.")]
_Channel = Annotated[
    str | None, typer.Argument(metavar="CHANNEL", help="The channel, if there are several.")
]
_ChannelOption = Annotated[
    str | None,
    typer.Option("--channel", metavar="NAME", help="The channel, if several read the topic."),
]
_Wait = Annotated[
    str, typer.Option(metavar="TIME", help="How long to wait until it is done; 0: do not wait.")
]
_Reason = Annotated[
    str, typer.Option(metavar="TEXT", help="The reason, for the log and the status.")
]

_LEVELS = ("debug", "info", "warning", "error", "default")

_PARTITION = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+):(?P<partition>[0-9]{1,9})")


_RECORD = re.compile(rf"{_PARTITION.pattern}:(?P<offset>[0-9]{{1,19}})")


def health(
    config: ConfigFile,
    *,
    ready: Annotated[
        bool,
        typer.Option("--ready", help="Ask whether it does its work, not only whether it runs."),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=LEAST_TIMEOUT, help="How long to wait for the answer."),
    ] = TIMEOUT,
) -> None:
    """Check the health of a configuration's process on this machine.

    Finds the process by the file's path, even if the file is invalid. Exit codes: 0 healthy; 1 not
    healthy, no answer, or not running; 2 the command line is invalid, or the file is and no process
    has left a record of it.
    """
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    raise typer.Exit(commands.health(config, ready=ready, timeout=timeout))


def status(
    channel: _Channel = None,
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Refresh at this interval, until Ctrl-C."),
    ] = None,
    *,
    json: _Json = False,
) -> Command:
    """Show what a process is doing: channels, pauses, and the partitions that it holds."""
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    return commands.status(channel, as_json=json, watch=watch)


def top(
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, help="The time between two refreshes.")
    ] = 2.0,
    partitions: Annotated[
        int, typer.Option(metavar="N", min=0, help="The most partitions to show, by lag.")
    ] = 20,
    *,
    once: Annotated[bool, typer.Option("--once", help="Show the tables once and exit.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts, one line per refresh.")
    ] = False,
) -> Command:
    """Show lag, rates and errors of all channels and partitions, refreshed until Ctrl-C.

    Fills the terminal. Without a terminal it prints one table after the other.
    """
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    return commands.top(every=every, partitions=partitions, once=once, as_json=json)


def tap(
    channel: _Channel = None,
    *,
    partition: Annotated[
        str | None, typer.Option(metavar="TOPIC:N", help="Only records of this partition.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only records with this key.")
    ] = None,
    is_hex: Annotated[
        bool, typer.Option("--hex", help="The key is written in hexadecimal digits.")
    ] = False,
    rate: Annotated[
        float,
        typer.Option(metavar="N", min=0.01, max=1000, help="The most records to show per second."),
    ] = 10.0,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Exit after this many records.")
    ] = None,
    lasting: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long to show records; 1h at most.")
    ] = "1h",
    no_values: Annotated[
        bool, typer.Option("--no-values", help="Do not show the records' values.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts, one line per record.")
    ] = False,
) -> Command:
    """Show records of a running channel as they pass, until Ctrl-C. Does not slow it down.

    Shows a sample if more records pass than the rate allows. Masks what admin.redact names.
    """
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    _partition(partition)
    if is_hex and key is None:
        raise typer.BadParameter("says how --key is written; give that too", param_hint="--hex")
    return commands.tap(
        channel,
        partition=partition,
        key=key,
        hex=is_hex or None,
        rate=rate,
        limit=limit,
        for_s=_seconds(lasting, "--for"),
        no_values=no_values,
        as_json=json,
    )


def pause(
    channel: _Channel = None,
    *,
    partition: Annotated[
        str | None, typer.Option(metavar="TOPIC:N", help="Only this partition.")
    ] = None,
    reason: _Reason = "",
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When the pause ends, as in 2030-01-01T05:00:00Z."),
    ] = None,
    lasting: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="How long the pause lasts, as in 30m."),
    ] = None,
    shorten: Annotated[
        bool,
        typer.Option("--shorten", help="Replace your present pause even if it would end later."),
    ] = False,
    wait: _Wait = "30s",
    drain: Annotated[
        bool, typer.Option("--drain", help="Give the partitions back to the group.")
    ] = False,
    json: _Json = False,
) -> Command:
    """Pause delivery, and wait until it has stopped."""
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    seconds = _seconds(wait, "--wait")
    body: dict[str, Any] = {
        **_partition(partition),
        "mode": "drain" if drain else "hold",
        "reason": reason,
        "until": None if until is None else _parse_until(until),
        "for_s": None if lasting is None else _seconds(lasting, "--for"),
        "shorten": shorten,
        "wait_s": seconds,
    }
    return commands.channel_change("pause", channel, body, seconds, as_json=json, say=_say_paused)


def resume(
    channel: _Channel = None,
    partition: Annotated[
        str | None, typer.Option(metavar="TOPIC:N", help="Only this partition's pause.")
    ] = None,
    *,
    downstream: Annotated[
        bool, typer.Option("--downstream", help="End the processor's own pause.")
    ] = False,
    misfit: Annotated[
        bool,
        typer.Option(
            "--misfit",
            help="Retry all partitions that are paused because the sink refuses the result's "
            "columns.",
        ),
    ] = False,
    of: Annotated[
        str | None, typer.Option(metavar="WHO", help="End a pause that this user began.")
    ] = None,
    json: _Json = False,
) -> Command:
    """End the pause that you began. Pauses by others, or for other reasons, stay."""
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    if [downstream, misfit, of is not None].count(True) > 1:
        raise typer.BadParameter("give --downstream, --misfit or --of: one pause ends at a time")
    body = {
        **_partition(partition),
        "pause_reason": "downstream" if downstream else "misfit" if misfit else "operator",
        "of": of,
    }
    return commands.channel_change("resume", channel, body, as_json=json, say=_say_resumed)


def acknowledge(
    channel: _Channel = None,
    dead_letters: Annotated[
        int | None,
        typer.Option("--dead-letters", metavar="N", min=0, help="Only this many dead letters."),
    ] = None,
    skipped: Annotated[
        int | None,
        typer.Option("--skipped", metavar="N", min=0, help="Only this many skipped records."),
    ] = None,
    rejected_facts: Annotated[
        int | None,
        typer.Option(
            "--rejected-facts",
            metavar="N",
            min=0,
            help="Only this many facts that a channel with state rejected.",
        ),
    ] = None,
    *,
    json: _Json = False,
) -> Command:
    """Mark dead letters, skipped records and rejected facts as seen: all of them, or a number.

    Later ones are shown again. This survives a restart.
    """
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    counts = {
        "dead_letters": dead_letters,
        "skipped_records": skipped,
        "rejected_facts": rejected_facts,
    }
    body = {kind: count for kind, count in counts.items() if count is not None}
    return commands.channel_change(
        "acknowledge", channel, body, as_json=json, say=_say_acknowledged
    )


def seek(
    where: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC:N[:OFFSET]|CHANNEL",
            help="The partition and the next offset to deliver. With --to: a partition, or a "
            "channel with all partitions that the process holds.",
        ),
    ],
    channel: _ChannelOption = None,
    to: Annotated[str | None, typer.Option(metavar="WHERE", help=f"{FORMS}.")] = None,
    replay: Annotated[
        Replay | None,
        typer.Option(
            metavar="append",
            help="Keep the sink's output of records that are read again, and add to it.",
        ),
    ] = None,
    wait: _Wait = "60s",
    *,
    json: _Json = False,
) -> Command:
    """Move partitions of a paused channel, in the group and in the sink."""
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    seconds = _seconds(wait, "--wait")
    body: dict[str, Any] = {"wait_s": seconds}
    if replay is not None:
        body["replay"] = replay.value
    if to is None:
        body |= _record(where, "WHERE without --to")
        return commands.channel_change("seek", channel, body, seconds, as_json=json, say=_say_moved)
    _target(to)
    match = _PARTITION.fullmatch(where)
    if match is not None:
        body |= {"topic": match["topic"], "partition": int(match["partition"])}
    chosen = where if match is None else channel
    return commands.channel_change(
        "reset", chosen, body | {"to": to}, seconds, as_json=json, say=_say_moved
    )


def skip(
    record: Annotated[
        str, typer.Argument(metavar="TOPIC:PARTITION:OFFSET", help="The record to skip.")
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the log.")],
    channel: _ChannelOption = None,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Skip it even if the failing batch does not contain it.")
    ] = False,
    json: _Json = False,
) -> Command:
    """Skip one record that cannot be processed. Needs no pause.

    It has to be in the batch that fails or is being processed; headrace status shows that batch.
    """
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    body = {**_record(record, "TOPIC:PARTITION:OFFSET"), "reason": reason, "force": force}
    return commands.channel_change("skip", channel, body, as_json=json, say=_say_skipped)


def reload(wait: _Wait = "60s", *, json: _Json = False) -> Command:
    """Apply the configuration file as it is now. A bad file changes nothing."""
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    return commands.reload(_seconds(wait, "--wait"), as_json=json)


def loglevel(
    level: Annotated[
        str,
        typer.Argument(
            metavar="LEVEL",
            help="debug, info, warning, error; default removes a logger's own level.",
        ),
    ],
    logger: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this logger, as in headrace.channel.")
    ] = None,
    lasting: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="How long the level lasts, as in 10m."),
    ] = None,
    *,
    json: _Json = False,
) -> Command:
    """Change the log level, until the next start or for a while."""
    from headrace.config.errors import either  # noqa: PLC0415 - takes a moment to import
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    if level not in _LEVELS:
        raise typer.BadParameter(f"{level!r} is not {either(_LEVELS)}", param_hint="LEVEL")
    body: dict[str, Any] = {
        "level": None if level == "default" else level,
        "logger": logger,
        "for_s": None if lasting is None else _seconds(lasting, "--for"),
    }
    return commands.change("/api/v1/loglevel", body, 0.0, as_json=json, say=_say_levels)


def stop(
    reason: _Reason = "",
    *,
    json: _Json = False,
) -> Command:
    """Stop a process cleanly, as SIGTERM does. Does not wait for its end."""
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    return commands.change(
        "/api/v1/stop", {"reason": reason}, 0.0, as_json=json, say=lambda _: "it stops"
    )


# --- parts --------------------------------------------------------------------------------------


def _record(text: str, hint: str) -> dict[str, Any]:
    match = _RECORD.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not TOPIC:PARTITION:OFFSET", param_hint=hint)
    return {
        "topic": match["topic"],
        "partition": int(match["partition"]),
        "offset": int(match["offset"]),
    }


def _partition(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    match = _PARTITION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not TOPIC:N", param_hint="--partition")
    return {"topic": match["topic"], "partition": int(match["partition"])}


def _target(text: str) -> None:
    try:
        parse_target(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from None


def _seconds(text: str, option: str) -> float:
    from headrace.config.types.units import parse_duration  # noqa: PLC0415 - imports pydantic

    seconds = parse_duration(text)
    if seconds is None:
        raise typer.BadParameter(
            f"{text!r} is not a time such as 500ms, 30s or 2h", param_hint=option
        )
    return seconds


def _parse_until(text: str) -> str:
    try:
        return format_moment(parse_moment(text))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--until") from None


def _say_paused(name: str, answer: Any) -> str:
    pause = answer["pause"]
    scope = name if pause["topic"] is None else f"{pause['topic']}:{pause['partition']}"
    end = "" if pause["until"] is None else f" until {pause['until']}"
    met = "".join(f"; {line}" for line in _describe_met(answer))
    if answer["acknowledged"] is False:
        return f"{scope} is being paused{end}; something is still being processed{met}"
    return f"{scope} {'is' if answer['acknowledged'] else 'will be'} paused{end}{met}"


def _describe_met(answer: Any) -> Iterator[str]:
    """Yield what a pause met: what it came in the place of, and what goes on beside it."""
    if answer["replaced"] is not None:
        yield f"in place of your pause{_until(answer['replaced'])}"
    for pause in answer["others"]:
        where = "" if pause["topic"] is None else f"{pause['topic']}:{pause['partition']} "
        yield f"{where}paused by {pause['by']}{_until(pause)}, too"


def _until(pause: Any) -> str:
    return " without an end" if pause["until"] is None else f" until {pause['until']}"


def _say_resumed(name: str, answer: Any) -> str:
    said = f"{name} had no such pause" if answer["resumed"] is None else f"{name} resumed"
    left = [f"{p['reason']} by {p['by']}" for p in answer["pauses"]]
    return f"{said}; others go on: {', '.join(left)}" if left else said


def _say_acknowledged(name: str, answer: Any) -> str:
    done = [
        f"{count} {kind.replace('_', ' ')}"
        for kind, count in answer["acknowledged"].items()
        if count
    ]
    return f"{name}: acknowledged {', '.join(done) or 'nothing, as there is nothing open'}"


def _say_moved(_name: str, answer: Any) -> str:
    moved = answer.get("moved", [answer])
    lines = [f"{m['topic']}:{m['partition']} from {m['before']} to {m['offset']}" for m in moved]
    return "\n".join(lines) or "the process holds no partition of the channel"


def _say_skipped(_name: str, answer: Any) -> str:
    from headrace.ops.admin.tables import batch_of  # noqa: PLC0415 - takes a moment to import

    where = f"{answer['topic']}:{answer['partition']}:{answer['offset']}"
    failed = f" that failed: {answer['last_error']}" if answer["attempts"] else ""
    of = "" if answer["batch_offset"] is None else f", of {batch_of(answer)}{failed}"
    return f"{where} is left out from now on{of}"


def _say_levels(answer: Any) -> str:
    levels = ", ".join(f"{name or 'all'} {level}" for name, level in answer["levels"].items())
    end = answer["reverts_at"]
    return levels if end is None else f"{levels}; until {end}"


app = command_group()
for _command in (status, top, tap, pause, resume, seek, skip, acknowledge, loglevel, reload, stop):
    app.command()(connected(_command))
app.command()(health)
