"""The command ``headrace doctor``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated

import typer


def doctor(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="The YAML configuration file.")
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Look whether this machine, ZooKeeper, Kafka and Spark are fit for a configuration.

    Prints what was seen and what to do about it, and the least Kafka ACLs as commands. Changes
    nothing but for one ephemeral node, which it deletes, and imports the code that is named.
    Exit codes: 0 no errors, though perhaps warnings; 1 something has to be mended; 2 the
    configuration cannot be used.
    """
    from headrace.doctor import commands  # noqa: PLC0415 - takes a second to import

    raise typer.Exit(commands.doctor(config, as_json=json))
