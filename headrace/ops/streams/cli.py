"""``headrace streams plan|rows|compare|adopt|reshard``.

Exit codes: 0 done; 1 rows differ, or failed, and the message says what was changed; 2 the
configuration or the command line cannot be used; 3 a process runs where a stopped one is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.core.extras import Extra, required
from headrace.core.options import ConfigFile, command_group
from headrace.ops.admin.cli import connected

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.ops.admin.commands import Command

#: The forms of a time that the API takes.
_TIME = "milliseconds since 1970, or a time such as 2013-01-01T05:00:00Z"

app = command_group(help="Look at topologies of streams, and work on their state.")


@app.command()
def plan(
    config: ConfigFile,
    topology: Annotated[
        str | None,
        typer.Argument(metavar="TOPOLOGY", help="The topology, if the configuration has several."),
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print a picture in the language of Mermaid.")
    ] = False,
) -> None:
    """Show the channels of a topology: topics, operators, and stores with their changelogs.

    Channels come in the order of the data. Imports the topology's code and connects to nothing.
    """
    from headrace.ops.offsets.commands import guarded  # noqa: PLC0415 - takes a second to import
    from headrace.ops.streams import commands  # noqa: PLC0415 - takes a second to import

    if json and mermaid:
        raise typer.BadParameter(
            "does not go with --json; choose one of them", param_hint="--mermaid"
        )
    form = commands.Form.JSON if json else commands.Form.MERMAID if mermaid else commands.Form.TEXT
    raise typer.Exit(guarded(config, lambda loaded: commands.show_plan(loaded, topology, form)))


def rows(  # noqa: PLR0917 - one for each option
    topology: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="The topology.")],
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="The store, which is called as its operator.")
    ],
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="The key: its text or its digits; several parts as an array in JSON.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help=f"Only windows of KEY from then on: {_TIME}."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Only windows of KEY before.")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only the window that starts then; of sessions and sliding windows, that ends.",
        ),
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only keys with this prefix.")] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The most rows to show.")] = 100,
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only this partition.")
    ] = None,
    *,
    stale: Annotated[
        bool,
        typer.Option("--stale", help="Show rows of copies, too; it says how far those are behind."),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts, one line per row.")
    ] = False,
) -> Command:
    """Show committed rows of a store, of one key or of all, from a running process.

    Rows have the fields that the store's operator writes. Windows are those that are not over.

    Exit codes: 0 shown; 1 there is no such row, or another member has it; 2 the command line cannot
    be used; 3 the process does not run; 4 the partition is being restored.
    """
    from headrace.ops.streams import rows as shown  # noqa: PLC0415 - takes a moment to import

    copies = "true" if stale else None
    if key is None:
        if since is not None or until is not None:
            raise typer.BadParameter("choose windows of a KEY; name it", param_hint="--from, --to")
        wanted = {"prefix": prefix or None, "window": window, "partition": partition}
        wanted["stale"] = copies
        return shown.rows_of_store(topology, store, limit, as_json=json, **wanted)
    if window is not None or prefix:
        raise typer.BadParameter(
            "choose rows of all keys; leave KEY out", param_hint="--window, --prefix"
        )
    bounds = {"from": since, "to": until, "partition": partition, "stale": copies}
    return shown.rows_of_key(topology, store, key, as_json=json, **bounds)


app.command()(connected(rows))


@app.command()
def compare(
    config: ConfigFile,
    one: Annotated[str, typer.Argument(metavar="ONE", help="A topology.")],
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="Another topology, as the next version of it.")
    ],
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store, by its name in both.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Compare a store of two topologies, row by row, as their changelogs have it.

    Works while they run, and says of which offsets the rows are. Shows the first rows that differ.

    Exit codes: 0 all rows are the same; 1 they are not, or cannot be read; 2 the configuration or
    the command line cannot be used, or the stores are not of the same rows.
    """
    from headrace.ops.offsets.commands import guarded  # noqa: PLC0415 - takes a second to import

    def command(loaded: Config) -> int:
        with required(Extra.KEYED, "headrace streams compare"):
            from headrace.ops.streams import compare as comparing  # noqa: PLC0415 - takes a second to import

        return comparing.compare(loaded, one, other, store, as_json=json)

    raise typer.Exit(guarded(config, command))


@app.command()
def adopt(
    config: ConfigFile,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="A channel of type keyed.")],
    name: Annotated[
        str,
        typer.Option(
            "--as", metavar="NAME", help="The reduce() that goes on: NAME, or TOPOLOGY.NAME."
        ),
    ],
) -> None:
    """Move the state and the offsets of a keyed channel to a reducer in a topology.

    Both have to be stopped and in the configuration. Everything is one transaction: if it is
    interrupted, run it again. The channel's own state and offsets stay.
    """
    from headrace.ops.offsets.commands import guarded  # noqa: PLC0415 - takes a second to import

    def command(loaded: Config) -> None:
        with required(Extra.KEYED, "headrace streams adopt"):
            from headrace.ops.streams import adopt as adopting  # noqa: PLC0415 - takes a second to import

        adopting.adopt(loaded, channel, name)

    raise typer.Exit(guarded(config, command))


@app.command()
def reshard(
    config: ConfigFile,
    topology: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="The topology.")],
    partitions: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Partitions of each topic by key: a multiple of the present."
        ),
    ],
) -> None:
    """Add partitions to the topics by key of a topology, and move each row of its stores.

    Needs a stopped topology whose topics by key are read to their ends. The rows of a part are
    moved in one transaction: if it is interrupted, run it again.
    """
    from headrace.ops.offsets.commands import guarded  # noqa: PLC0415 - takes a second to import

    def command(loaded: Config) -> None:
        with required(Extra.KEYED, "headrace streams reshard"):
            from headrace.ops.streams import reshard as dividing  # noqa: PLC0415 - takes a second to import

        dividing.reshard(loaded, topology, partitions)

    raise typer.Exit(guarded(config, command))
