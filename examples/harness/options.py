"""Options that the commands of several demos have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: Fewer flights would leave partitions empty in some of the phases.
LEAST_ROWS = 1_000

RowsOption = Annotated[
    int | None,
    typer.Option(min=LEAST_ROWS, help="How many flights, from the first on; default: all."),
]
OverOption = Annotated[
    float, typer.Option(min=1, help="Seconds over which the records are produced, at least.")
]
DirectoryOption = Annotated[
    Path | None,
    typer.Option("--dir", file_okay=False, help="An empty folder to work in, which is then kept."),
]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Leave ZooKeeper and Kafka running, and keep all files.")
]
