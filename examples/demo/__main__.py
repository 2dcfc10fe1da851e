"""``python -m examples.demo``.

Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated

import typer

from examples.demo.demo import main
from examples.harness.options import (  # noqa: TC001 - as above
    DirectoryOption,
    KeepOption,
    OverOption,
    RowsOption,
)
from examples.harness.progress import SECONDS

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    rows: RowsOption = None,
    over: OverOption = SECONDS,
    directory: DirectoryOption = None,
    keep: KeepOption = False,
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
    raise typer.Exit(main(rows, over, directory, verify_only, keep=keep))


if __name__ == "__main__":
    app()
