"""``python -m examples.streams``.

Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
"""

from __future__ import annotations

import typer

from examples.harness.options import (  # noqa: TC001 - typer reads annotations
    DirectoryOption,
    OverOption,
    RowsOption,
)
from examples.harness.progress import SECONDS
from examples.streams.demo import main
from headrace.apps.options import EngineName, EngineOption

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    rows: RowsOption = None,
    engine: EngineOption = EngineName.ARROW,
    over: OverOption = SECONDS,
    directory: DirectoryOption = None,
) -> None:
    """Join real flights with planes and weather in windows, and kill a daemon on the way.

    Starts ZooKeeper and Kafka, and two daemons with a topology: flights get what is known of their
    planes, are counted and added up by hour and airport, and joined with the weather of the hour,
    into two Delta tables. One daemon is killed and started again. The last line says whether the
    tables are what pandas and, where Java has a compiler, Kafka Streams make of the same records.

    Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
    """
    raise typer.Exit(main(rows, engine.value, over, directory))


if __name__ == "__main__":
    app()
