"""``python -m examples.elements``.

Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
"""

from __future__ import annotations

import typer

from examples.elements.demo import main
from examples.harness.options import (  # noqa: TC001 - typer reads annotations
    DirectoryOption,
    OverOption,
    RowsOption,
)
from headrace.apps.options import EngineName, EngineOption

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    rows: RowsOption = None,
    engine: EngineOption = EngineName.SPARK,
    over: OverOption = 30.0,
    directory: DirectoryOption = None,
) -> None:
    """Count real flights by their destination, kill the daemon on the way, and check every report.

    Starts ZooKeeper and Kafka, and a daemon with an element for each destination, which reports
    each 1,000 flights and each 5 s. It is killed and started again. The last line says whether the
    last reports are what pandas sums up, and each report by number is there once.

    Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
    """
    raise typer.Exit(main(rows, engine.value, over, directory))


if __name__ == "__main__":
    app()
