"""Options that commands of several rooms have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def config_option(meaning: str) -> Any:
    """Return the option that names a configuration, also by the variable."""
    return typer.Option("--config", "-c", metavar="FILE", envvar="HEADRACE_CONFIG", help=meaning)


ConfigFile = Annotated[Path, config_option("The YAML configuration file.")]
