"""``python -m examples.collector``.

Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
"""

from __future__ import annotations

from typing import Annotated

import typer

from examples.collector.demo import main
from examples.harness.options import (  # noqa: TC001 - typer reads annotations
    DirectoryOption,
    KeepOption,
    OverOption,
)
from headrace.apps.options import EngineName, EngineOption

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    days: Annotated[
        int, typer.Option(min=1, max=365, help="How many days of flights, from the first on.")
    ] = 365,
    engine: EngineOption = EngineName.SPARK,
    over: OverOption = 80.0,
    directory: DirectoryOption = None,
    *,
    keep: KeepOption = False,
) -> None:
    """Collect real flights into groups, kill a collector on the way, and check every outcome.

    Starts ZooKeeper and Kafka, has a group for the flights that were to leave an airport in the
    same hour, and two collectors, one of which is killed and started again. Events come twice, out
    of order, before their group, or never. The last line says whether each group has exactly one
    outcome, and the right one.

    Exit codes: 0 verified; 1 not verified, or the demo could not be run; 128 + n after signal n.
    """
    raise typer.Exit(main(days, engine.value, over, directory, keep=keep))


if __name__ == "__main__":
    app()
