"""The commands of processing elements: ``headrace elements demo``.

Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
"""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.apps.options import EngineName, EngineOption
from headrace.core.options import command_group
from headrace.ops.demo.cli import Directory, require_extra

app = command_group(help="Run the demo of processing elements.")


@app.command(name="demo")
def elements_demo(
    rows: Annotated[
        int | None,
        typer.Option(min=1_000, help="How many flights, from the first on; default: all."),
    ] = None,
    engine: EngineOption = EngineName.SPARK,
    over: Annotated[
        float, typer.Option(min=1, help="Seconds over which they are produced, at least.")
    ] = 30.0,
    directory: Directory = None,
) -> None:
    """Count real flights by their destination, kill the daemon on the way, and check every report.

    Starts ZooKeeper and Kafka, and a daemon with an element for each destination, which reports
    each 1,000 flights and each 5 s. It is killed and started again. The last line says whether the
    last reports are what pandas sums up, and each report by number is there once.

    Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
    """
    require_extra()
    from headrace.apps.elements.demo import main  # noqa: PLC0415 - takes a second to import

    raise typer.Exit(main(rows, engine.value, over, directory))
