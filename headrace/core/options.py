"""What the command line's rooms have in common: their groups of commands, and options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


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


def config_option(meaning: str) -> Any:
    """Return the option that names a configuration, also by the variable."""
    return typer.Option("--config", "-c", metavar="FILE", envvar="HEADRACE_CONFIG", help=meaning)


ConfigFile = Annotated[Path, config_option("The YAML configuration file.")]
