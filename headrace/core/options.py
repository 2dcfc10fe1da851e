"""The groups of commands and the options that the command line's rooms have in common."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headrace.core.usual_file import NAME, usual_file


class Panel(Enum):
    """The purposes of commands: the sections of the help, in this order."""

    START = "Start"
    CONFIGURE = "Configure"
    RUN = "Run"
    WATCH = "Watch"
    OPERATE = "Operate"
    DEVELOP = "Develop"
    APPLICATIONS = "Applications"


class Commands(TyperGroup):
    """A group whose help has all that is said in brief of each command, by panels."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands with their summaries, which typer cuts short."""
        listed = [(name, *self.summary(name)) for name in self.list_commands(ctx)]
        for title in [*(panel.value for panel in Panel), None]:
            rows = [(name, summary) for name, panel, summary in listed if panel == title]
            if rows:
                with formatter.section(title or "Commands"):
                    formatter.write_dl(rows)

    def summary(self, name: str) -> tuple[str | None, str]:
        """Return a command's panel, None where it has none, and the first sentence of its help."""
        command = self.commands[name]
        return _panel_of(command), command.get_short_help_str(1000)


def _panel_of(command: Any) -> str | None:
    """Return a command's panel; without one typer has something else there."""
    panel = getattr(command, "rich_help_panel", None)
    return panel if isinstance(panel, str) else None


class PlainCommand(TyperCommand):
    """A command whose arguments stand in its help as they are typed: ``[CHANNEL]``, ``FILE``."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write how it is called, required arguments without the braces that typer has."""
        pieces = [each.strip("{}") for each in self.collect_usage_pieces(ctx)]
        formatter.write_usage(ctx.command_path, " ".join(pieces))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what each argument and each option means."""
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            rows = [
                (_name_of(each, record[0]), record[1])
                for each in self.get_params(ctx)
                if each.param_type_name == kind and (record := each.get_help_record(ctx))
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _name_of(parameter: Any, usual: str) -> str:
    return str(parameter.metavar) if parameter.param_type_name == "argument" else usual


class _Group(typer.Typer):
    """A group whose commands are of the kind above unless they say otherwise."""

    def command(self, name: str | None = None, **options: Any) -> Any:
        """Add a command, as typer does."""
        return super().command(name, **{"cls": PlainCommand, **options})


def command_group(**options: Any) -> typer.Typer:
    """Return an empty group. Its help is plain text: rich takes longer to import than all else."""
    usual = {
        "cls": Commands,
        "no_args_is_help": True,
        "rich_markup_mode": None,
        "context_settings": {"help_option_names": ["-h", "--help"]},
    }
    return _Group(**{**usual, **options})


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
