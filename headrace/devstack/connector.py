"""``headrace connector fetch``: Spark's Kafka connector for machines that reach no Maven Central.

Exit codes: 0 done, 1 the jars could not be fetched or the folder cannot be used.
"""

from __future__ import annotations

import shutil
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated

import typer

from headrace.core.errors import HeadraceError
from headrace.core.options import command_group
from headrace.devstack.errors import LocalStackError
from headrace.devstack.jars import cached, connector_set, damaged, pinned_sums

EXIT_FAILED = 1

app = command_group(
    help="Fetch Spark's Kafka connector, for channels with source: by_reference.",
)


@app.callback()
def connector() -> None:
    """Keep ``fetch`` a subcommand although it is the only one."""


@app.command()
def fetch(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", file_okay=False, resolve_path=True, help="Where to put the jars."
        ),
    ],
) -> None:
    """Put the connector's jars into a folder, for spark.connector, unless they are there."""
    try:
        fetch_into(directory)
    except (HeadraceError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_FAILED) from error
    typer.echo(f"{len(pinned_sums(connector_set()))} jars in {directory}; use them with")
    typer.echo(f"spark: {{connector: {directory}}}")


def fetch_into(folder: Path) -> None:
    """Fetch the connector's jars into ``folder`` and verify them. Blocks.

    Raises:
        LocalStackError: they could not be fetched, or other jars are in the folder.
    """
    sums = pinned_sums(connector_set())
    others = sorted({path.name for path in folder.glob("*.jar")} - sums.keys())
    if others:
        raise LocalStackError(
            f"{folder} has other jars, which Spark would load too: {', '.join(others)}; "
            "give another folder"
        )
    if not damaged(folder, sums):
        return
    folder.mkdir(parents=True, exist_ok=True)
    for jar in cached(connector_set()):
        part = folder / f".{jar.name}.part"
        shutil.copyfile(jar, part)
        part.replace(folder / jar.name)
