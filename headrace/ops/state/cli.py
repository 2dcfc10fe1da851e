"""``headrace state``: commands for the state of channels, and for the stores that it is kept in.

Exit codes: 0 done; 1 no such key, keys that differ, or failed, and the message says what was
changed; 2 the configuration, the command line or the file cannot be used; 3 the process does not
run, or runs where a stopped channel is needed; 4 the key's partition is being restored.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.core.extras import Extra, required
from headrace.core.options import ConfigFile, command_group
from headrace.ops.admin.cli import connected

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from headrace.config import Config
    from headrace.ops.admin.client import ClientOptions
    from headrace.ops.admin.commands import Command

app = command_group(
    help="Look at the state of a keyed channel's keys, and move the state of a stopped one.",
)

_Key = Annotated[
    str, typer.Argument(metavar="KEY", help="The key; with keys: bytes, in hexadecimal digits.")
]
_Channel = Annotated[
    str | None,
    typer.Option("--channel", metavar="NAME", help="The channel, if several keep state."),
]
_Partition = Annotated[
    int | None, typer.Option("--partition", min=0, metavar="N", help="Only this partition.")
]
_Hex = Annotated[bool, typer.Option("--hex", help="The key is written in hexadecimal digits.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts, one line per key.")]
_FromChangelog = Annotated[
    bool,
    typer.Option(
        "--changelog",
        help="Read the whole changelog topic instead of asking a process. Needs -c.",
    ),
]


def get(
    key: _Key,
    channel: _Channel = None,
    partition: _Partition = None,
    *,
    is_hex: _Hex = False,
    stale: Annotated[
        bool,
        typer.Option(
            "--stale",
            help="Show the state of a copy where the process is not the owner of the key's "
            "partition; it says how far that is behind.",
        ),
    ] = False,
    json: _Json = False,
    changelog: _FromChangelog = False,
) -> Command:
    """Show the committed state of a key, from a running process or from the changelog."""
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    del changelog
    return commands.state_of_key(
        channel, key, partition=partition, is_hex=is_hex, stale=stale, as_json=json
    )


def list_(
    channel: _Channel = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only keys with this prefix.")] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The most keys to show.")] = 100,
    partition: _Partition = None,
    *,
    is_hex: _Hex = False,
    json: _Json = False,
    changelog: _FromChangelog = False,
) -> Command:
    """List keys with their states, from a running process or from the changelog."""
    from headrace.ops.admin import commands  # noqa: PLC0415 - takes a moment to import

    del changelog
    return commands.states(channel, prefix, limit, partition=partition, is_hex=is_hex, as_json=json)


def _from_changelog(options: ClientOptions, arguments: dict[str, Any]) -> int | None:
    """Read the changelog if that is asked for; return the exit code, None if it is not."""
    if not arguments["changelog"]:
        return None
    if options.config is None:
        raise typer.BadParameter("takes the configuration: -c FILE", param_hint="--changelog")
    if arguments.get("stale"):
        raise typer.BadParameter(
            "shows copies that processes have; leave --changelog out", param_hint="--stale"
        )
    unknown = {"changelog", "json", "stale"}
    chosen = {name: value for name, value in arguments.items() if name not in unknown}
    as_json = arguments["json"]

    def command(loaded: Config) -> None:
        shown = _commands().show_key if "key" in chosen else _commands().show_keys
        shown(loaded, **chosen, as_json=as_json)

    return _run_guarded(options.config, command)


app.command(name="get")(connected(get, instead=_from_changelog))
app.command(name="list")(connected(list_, instead=_from_changelog))


@app.command()
def export(
    config: ConfigFile,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write; - for standard output.")
    ],
    channel: _Channel = None,
    form: Annotated[
        Literal["jsonl", "parquet"],
        typer.Option("--format", help="One JSON document per line, or a table."),
    ] = "jsonl",
) -> None:
    """Write all keys of the changelog to a file, with the offsets that go with them.

    Works while the channel runs; then it leaves out the offsets of partitions that advance.
    """
    _run(config, lambda loaded: _commands().export(loaded, channel, file, form))


@app.command(name="import")
def import_(
    config: ConfigFile,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file that export wrote, in either format.")
    ],
    channel: _Channel = None,
    offsets: Annotated[
        Literal["file", "earliest", "latest"],
        typer.Option(help="Where the channel continues: at the offsets in the file, or elsewhere."),
    ] = "file",
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete keys that are not in the file.")
    ] = False,
) -> None:
    """Store the keys and the offsets of a file in the changelog of a stopped channel."""

    def command(loaded: Config) -> None:
        _commands().import_state(loaded, channel, file, replace_rows=replace, offsets=offsets)

    _run(config, command)


@app.command()
def forget(
    config: ConfigFile,
    channel: _Channel = None,
    to: Annotated[
        Literal["earliest", "latest"] | None,
        typer.Option(help="Where the channel begins; by default where initial_offset says."),
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete the state of a stopped channel together with its offsets."""
    _run(config, lambda loaded: _commands().forget(loaded, channel, to, yes=yes))


@app.command()
def release(
    config: ConfigFile,
    key: _Key,
    channel: _Channel = None,
    *,
    is_hex: _Hex = False,
) -> None:
    """End the quarantine of a key of a stopped channel. It keeps its state and timers."""
    _run(config, lambda loaded: _commands().release(loaded, channel, key, is_hex=is_hex))


@app.command()
def verify(config: ConfigFile, channel: _Channel = None) -> None:
    """Compare the local store of a stopped process with the changelog, row by row.

    Exit codes: 0 they are the same; 1 they are not, and the keys are named, or the changelog cannot
    be read; 2 the configuration cannot be used, or no state was kept here; 3 the process runs.
    """
    _run(config, lambda loaded: _commands().verify(loaded, channel))


@app.command()
def snapshot(
    config: ConfigFile,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder to write, which is not there yet.")
    ],
    channel: _Channel = None,
) -> None:
    """Copy the local store to a folder, for another machine to continue from.

    Works while the process runs, which is asked for its files through its API and goes on. The
    folder says of which changelog it is, with the checksum of each file.

    Exit codes: 0 written; 1 the files cannot be copied, and nothing is written; 2 the configuration
    or the command line cannot be used, or no state was kept here; 3 a process has the store, and
    does not answer.
    """

    def command(loaded: Config) -> None:
        _commands()
        from headrace.ops.state import snapshot as taking  # noqa: PLC0415 - takes a second to import

        taking.take_snapshot(loaded, config, channel, folder)

    _run(config, command)


@app.command()
def restore(
    config: ConfigFile,
    channel: _Channel = None,
    *,
    from_store: Annotated[
        bool,
        typer.Option(
            "--from-store",
            help="Write the rows of this machine's local store to a changelog that lost them.",
        ),
    ] = False,
    from_snapshot: Annotated[
        Path | None,
        typer.Option(
            "--from-snapshot",
            metavar="FOLDER",
            help="Replace this machine's local store by a snapshot's.",
        ),
    ] = None,
) -> None:
    """Write the local store to a changelog that lost its rows, or a snapshot to the local store.

    With --from-store, needs a stopped channel, on the machine that had the partitions last. All is
    one transaction. Rows that the changelog has stay as they are.

    With --from-snapshot, needs a stopped process on this machine; others of the group may run. The
    next start reads only what the changelog has after the snapshot. A snapshot is refused where its
    changelog was made again or cut, where a file is another one, and where the store here has more.

    Exit codes: 0 nothing is missing any more, or the snapshot is in place; 1 the local store is
    behind the last commit of some partitions (listed), or the restore failed; 2 the configuration
    or the snapshot cannot be used, or no state was kept here; 3 a process runs.
    """
    if from_store == (from_snapshot is not None):
        raise typer.BadParameter(
            "say what is to be written: --from-store, what the local store has, or --from-snapshot "
            "FOLDER, what a snapshot has",
            param_hint="--from-store",
        )

    def command(loaded: Config) -> int:
        _commands()
        if from_snapshot is not None:
            from headrace.ops.state import snapshot as putting  # noqa: PLC0415 - takes a second to import

            putting.restore_from_snapshot(loaded, channel, from_snapshot)
            return 0
        from headrace.ops.state import rescue  # noqa: PLC0415 - takes a second to import

        return rescue.restore_from_store(loaded, channel)

    _run(config, command)


@app.command()
def repartition(
    config: ConfigFile,
    channel: _Channel = None,
    partitioner: Annotated[
        Literal["murmur2", "consistent"] | None,
        typer.Option(help="How producers spread keys, if the states do not show it."),
    ] = None,
    *,
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite",
            help="Write unread records to the input again, each to the partition of its key.",
        ),
    ] = False,
) -> None:
    """Move each key's state to where it belongs, after the input got more partitions.

    Needs a stopped channel, and gives the changelog as many partitions as the input. Everything is
    one transaction: if it is interrupted, run it again.
    """

    def command(loaded: Config) -> None:
        _commands()
        from headrace.ops.state import repartition as moving  # noqa: PLC0415 - takes a second to import

        moving.repartition(loaded, channel, partitioner=partitioner, rewrite=rewrite)

    _run(config, command)


@app.command()
def topics(
    config: ConfigFile,
    channel: _Channel = None,
    *,
    create: Annotated[
        bool, typer.Option("--create", help="Create the changelog where it does not exist.")
    ] = False,
) -> None:
    """Check the changelog topics: partitions, compaction, how long deletions are kept, lost rows.

    Exit codes: 0 nothing committed is missing; 1 rows are missing or would be lost, and the output
    says what to do; 2 the configuration cannot be used.
    """
    _run(config, lambda loaded: _commands().topics(loaded, channel, create=create))


def _run(config: Path, command: Callable[[Config], int | None]) -> None:
    raise typer.Exit(_run_guarded(config, command))


def _run_guarded(config: Path, command: Callable[[Config], int | None]) -> int:
    from headrace.ops.offsets import commands  # noqa: PLC0415 - takes a second to import

    return commands.guarded(config, command)


def _commands() -> ModuleType:
    """Return what does it, which takes the extra that keyed channels take."""
    with required(Extra.KEYED, "headrace state"):
        from headrace.ops.state import commands  # noqa: PLC0415 - takes a second to import

    return commands
