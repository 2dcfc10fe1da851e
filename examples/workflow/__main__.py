"""``python -m examples.workflow``.

Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
"""

from __future__ import annotations

from typing import Annotated

import typer

from examples.harness.options import (  # noqa: TC001 - typer reads annotations
    DirectoryOption,
)
from examples.workflow.demo import main
from headrace.apps.options import EngineName, EngineOption

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    instances: Annotated[
        int,
        typer.Option(min=100, max=336_776, help="How many flights, from the first of 2013 on."),
    ] = 20_000,
    engine: EngineOption = EngineName.ARROW,
    directory: DirectoryOption = None,
) -> None:
    """Run the turnaround of real flights as workflows, kill processes on the way, check all.

    Starts ZooKeeper and Kafka, a reducer and two workers; each is killed and started again.
    A flight is an instance: inspect, refuel and clean, board, which fails for those that were
    cancelled. The last line says whether each instance has exactly one outcome, and the right one,
    and whether each call had its effect once.

    Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
    """
    raise typer.Exit(main(instances, engine.value, directory))


if __name__ == "__main__":
    app()
