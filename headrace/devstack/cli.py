"""``headrace local up|down|status``: a ZooKeeper and a Kafka to try things on.

Exit codes: 0 done, or everything runs; 1 something failed, or a server of a running stack is down;
3 (``status``) no stack runs.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.core.errors import HeadraceError
from headrace.core.options import command_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.devstack.stack import StackState

#: The folder whose records a new topic gets.
_USUAL_RECORDS = Path("records")

EXIT_FAILED = 1
EXIT_NOT_RUNNING = 3

app = command_group(
    help="Run a real ZooKeeper and a real Kafka on this machine's loopback address.",
)


def default_directory() -> Path:
    """Return the folder used when none is named: in the user's XDG state folder."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "headrace" / "local"


_Directory = Annotated[
    Path,
    typer.Option(
        "--dir",
        file_okay=False,
        resolve_path=True,
        default_factory=default_directory,
        show_default="headrace/local in the user's state folder",
        help="The folder for data, settings and logs.",
    ),
]


@app.command()
def up(
    directory: _Directory,
    records: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="A folder of records: each TOPIC.jsonl, a record a line, goes to the topic of its "
            "name, which is made where it is missing. Without this option those of the folder "
            "records, if it is there, go to topics that are made for them, and to no others.",
        ),
    ] = None,
    secured: Annotated[
        bool,
        typer.Option(
            "--secured",
            help="Give the broker another door besides, with TLS, a user who has rights, SCRAM, "
            "and OAuth with an issuer of tokens; prints what a configuration needs for it.",
        ),
    ] = False,
    registry: Annotated[
        bool,
        typer.Option(
            "--registry",
            help="Start a schema registry besides, Apicurio, which needs Java 21; prints the "
            "section that a configuration needs for it.",
        ),
    ] = False,
) -> None:
    """Start the servers and leave them running; harmless if they run already.

    They use the ports 9092 and 2181 if these are free the first time. Only the records that
    --records names are written again each time.
    """
    from headrace.devstack import detached  # noqa: PLC0415 - takes a while to import
    from headrace.devstack.records import produce_records  # noqa: PLC0415 - takes a while to import

    with _errors_shown():
        state = detached.up(directory, secured=secured, registry=registry)
        _show(state)
        folder, only_new = records or _USUAL_RECORDS, records is None
        for file, count in produce_records(folder, state.bootstrap_servers, only_new=only_new):
            typer.echo(f"{count} records of {file} are in topic {file.stem}")
    if directory != default_directory() and not detached.has_usual_ports(state):
        kafka, zookeeper = state.bootstrap_servers, state.zookeeper_hosts
        typer.echo(f"for a project of headrace init: export KAFKA={kafka} ZOOKEEPER={zookeeper}")
    if state.secured is not None:
        typer.echo(f"through the secured door, by SCRAM or by oauth:\n{state.secured.sections()}")
    if state.registry_url is not None:
        typer.echo(f"the schema registry:\nregistry: {{url: '{state.registry_url}'}}")
    typer.echo(f"stop them with: headrace local down --dir {directory}")


@app.command()
def down(directory: _Directory) -> None:
    """Stop the servers; data and logs stay. Exits with 0 even if nothing runs."""
    from headrace.devstack import detached  # noqa: PLC0415 - takes a while to import

    with _errors_shown():
        stopped = detached.down(directory)
    typer.echo("stopped" if stopped else f"no local stack runs in {directory}")


@app.command()
def status(directory: _Directory) -> None:
    """Show the servers. Exits with 0 if all run, 1 if one is down, 3 if no stack runs."""
    from headrace.devstack import detached  # noqa: PLC0415 - takes a while to import
    from headrace.devstack.server import ProcessState  # noqa: PLC0415 - takes a while to import

    with _errors_shown():
        state = detached.running_state(directory)
    if state is None:
        typer.echo(f"no local stack runs in {directory}")
        raise typer.Exit(EXIT_NOT_RUNNING)
    _show(state)
    if any(server.process.state is not ProcessState.RUNNING for server in state.servers):
        raise typer.Exit(EXIT_FAILED)


def _show(state: StackState) -> None:
    from rich.console import Console  # noqa: PLC0415 - takes a while to import
    from rich.table import Table  # noqa: PLC0415 - takes a while to import

    table = Table("server", "address", "pid", "state", "log", box=None, pad_edge=False)
    for server in state.servers:
        table.add_row(
            server.name,
            server.address,
            str(server.process.pid),
            server.process.state.value,
            server.log_file,
        )
    Console(soft_wrap=True).print(table)


@contextmanager
def _errors_shown() -> Iterator[None]:
    try:
        yield
    except HeadraceError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_FAILED) from error
