"""Options that commands of several rooms have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: The option that names a configuration, also by the variable.
ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="HEADRACE_CONFIG",
        help="The YAML configuration file.",
    ),
]
