"""What the command line's rooms have in common: their groups of commands, and options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace.core.usual_file import NAME, usual_file


class Commands(TyperGroup):
    """A group whose help has all that is said in brief of each command."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands with their summaries, which typer cuts short."""
        listed = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(1000)) for name, each in listed])


def command_group(**options: Any) -> typer.Typer:
    """Return an empty group. Its help is plain text: rich takes longer to import than all else."""
    return typer.Typer(
        **{"cls": Commands, "no_args_is_help": True, "rich_markup_mode": None, **options}
    )


def config_option(meaning: str, **more: Any) -> Any:
    """Return the option that names a configuration, also by the variable."""
    return typer.Option(
        "--config", "-c", metavar="FILE", envvar="HEADRACE_CONFIG", help=meaning, **more
    )


def _named_or_there(file: Path | None) -> Path:
    """Return the configuration that is named, or the usual one."""
    chosen = file or usual_file()
    if chosen is None:
        raise typer.BadParameter(
            f"there is no {NAME} in this folder; name a configuration, here or by HEADRACE_CONFIG"
        )
    return chosen


ConfigFile = Annotated[
    Path,
    config_option(
        "The YAML configuration file.",
        default_factory=lambda: None,
        show_default=f"{NAME} in this folder",
        callback=_named_or_there,
    ),
]
