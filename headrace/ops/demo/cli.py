"""``headrace demo``.

Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.core.extras import Extra

#: Fewer would leave partitions empty in some of the phases.
_LEAST_ROWS = 1_000

Directory = Annotated[
    Path | None,
    typer.Option("--dir", file_okay=False, help="An empty folder to work in, which is then kept."),
]
Keep = Annotated[
    bool, typer.Option("--keep", help="Leave ZooKeeper and Kafka running, and keep all files.")
]


def require_extra() -> None:
    """End with 1 where something is missing that demos take, and say what installs it."""
    if not Extra.DEMO.installed:
        typer.echo(f"the demo {Extra.DEMO.advice}", err=True)
        raise typer.Exit(1)


def demo(
    rows: Annotated[
        int | None,
        typer.Option(min=_LEAST_ROWS, help="How many flights, from the first on; default: all."),
    ] = None,
    over: Annotated[
        float, typer.Option(min=1, help="Seconds over which they are produced, at least.")
    ] = 40.0,
    directory: Directory = None,
    keep: Keep = False,
    verify_only: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Only check a kept table.",
        ),
    ] = None,
) -> None:
    """Run the main job on real flights, kill a daemon on the way, and check every row.

    Starts ZooKeeper and Kafka, produces the flights to a topic, and has two daemons bring them
    through Spark into a Delta table, one of which is killed and started again. The last line says
    whether each flight is in the table exactly once; the exit code is 0 only then.
    """
    if verify_only is not None and (rows is not None or directory is not None or keep):
        raise typer.BadParameter("--verify-only runs nothing; leave the other options out")
    require_extra()
    from headrace.ops.demo.demo import main  # noqa: PLC0415 - takes a second to import

    raise typer.Exit(main(rows, over, directory, verify_only, keep=keep))
