"""``headrace init``: a project that runs, written into a folder.

Exit codes: 0 written; 1 the folder cannot be used; 2 the command line cannot be used.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

#: What stands in the files for what is known when they are written.
_BROKERS, _SERVERS, _FOLDER, _HEADRACE = "BROKERS", "SERVERS", "FOLDER", "HEADRACE"

#: Where the servers of headrace local and of the compose file are.
_LOCAL_BROKERS, _LOCAL_ZOOKEEPER = "localhost:9092", "localhost:2181"

_SCHEMA = "headrace.schema.json"

_PROJECT = (
    ".gitignore",
    "compose.yaml",
    "headrace.service",
    "headrace.yaml",
    "produce.py",
    "records/flights.jsonl",
    "reducer.py",
    "test_reducer.py",
)


def init(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            file_okay=False,
            help="A new folder, or one that is empty except for .git.",
        ),
    ],
    *,
    brokers: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The Kafka brokers.")
    ] = _LOCAL_BROKERS,
    zookeeper: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The ZooKeeper servers.")
    ] = _LOCAL_ZOOKEEPER,
) -> None:
    """Write a project that runs: a configuration, a reducer with its test, and records for it.

    In its folder, headrace local up && headrace run shows the first rows; with servers of your own,
    python produce.py && headrace run does. The reducer is of type arrow, which needs no Java. KAFKA
    and ZOOKEEPER in the environment override the addresses that are given here. Without any, the
    project uses the servers that headrace local started, or failed to start.
    """
    _check_addresses(brokers, zookeeper)
    folder = directory.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(path.name != ".git" for path in folder.iterdir()):
            raise FileExistsError(f"{folder} is not empty; name a new folder")
        command = Path(sys.executable).with_name("headrace")
        known = {
            _BROKERS: _or_written("kafka", brokers, _LOCAL_BROKERS),
            _SERVERS: _or_written("zookeeper", zookeeper, _LOCAL_ZOOKEEPER),
            _FOLDER: _without_specifiers(folder),
            _HEADRACE: _without_specifiers(command),
        }
        names = _write(folder, known)
    except OSError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{directory}: {', '.join(names)}")
    own = (brokers, zookeeper) != (_LOCAL_BROKERS, _LOCAL_ZOOKEEPER)
    records = "python produce.py" if own else "headrace local up"
    typer.echo(f"next: cd {shlex.quote(str(directory))} && {records} && headrace run")


def _or_written(name: str, address: str, usual: str) -> str:
    """Return the address; in place of the usual one, the one that headrace local has written."""
    if address != usual:
        return address
    from headrace.devstack.cli import default_directory  # noqa: PLC0415 - takes a while to import

    file = default_directory() / name
    home = Path.home()
    shown = f"~/{file.relative_to(home)}" if file.is_relative_to(home) else str(file)
    # a path that a reference cannot have
    return usual if ":-" in shown or "}" in shown else f"${{file:{shown}:-{usual}}}"


def _check_addresses(brokers: str, zookeeper: str) -> None:
    """Refuse what the configuration would refuse."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - takes a while to import

    from headrace.config.types.addresses import (  # noqa: PLC0415 - takes a while to import
        KafkaServers,
        ZooKeeperServers,
    )

    for option, kind, value in (
        ("--brokers", KafkaServers, brokers),
        ("--zookeeper", ZooKeeperServers, zookeeper),
    ):
        try:
            TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise typer.BadParameter(f"{value} {reason}", param_hint=option) from None


def _without_specifiers(path: Path) -> str:
    """Return a path as a systemd unit has it, where % begins a specifier."""
    return str(path).replace("%", "%%")


def _write(folder: Path, known: dict[str, str]) -> list[str]:
    """Write the files of the package's project, and return their names.

    Raises:
        OSError: they cannot be written; none of them is left.
    """
    from headrace.config.reference import schema  # noqa: PLC0415 - takes a while to import

    texts = {_SCHEMA: json.dumps(schema(), indent=2) + "\n"}
    project = resources.files(__name__).joinpath("project")
    for name in _PROJECT:
        text = project.joinpath(name).read_text(encoding="utf-8")
        texts[name] = re.sub(rf"\b({'|'.join(known)})\b", lambda match: known[match[0]], text)
    with ExitStack() as undo:
        (folder / "records").mkdir()
        undo.callback((folder / "records").rmdir)
        for name, text in texts.items():
            undo.callback((folder / name).unlink, missing_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        undo.pop_all()
    return sorted(texts)
