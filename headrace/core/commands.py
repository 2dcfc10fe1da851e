"""Commands of the command line, named before they are imported."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import typer

from headrace.core.imports import load_own
from headrace.core.options import Panel, command_group
from headrace.core.plugins import PluginKind, installed_plugins


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of commands, as the help lists it.

    ``summary`` is the first sentence of its own help. ``path`` is where it is imported from,
    ``module:attribute``: a function, or an app of typer. A group of the command line that has a
    command of this name lends it.
    """

    name: str
    panel: Panel
    summary: str
    path: str

    def load(self) -> Any:
        """Import it, and return what click runs."""
        found = load_own(self.path)
        if isinstance(found, typer.Typer):
            group: Any = typer.main.get_group(found)
            loaded = group.commands.get(self.name, group)
        else:
            app = command_group()
            app.command(self.name)(found)
            loaded = typer.main.get_command(app)
        loaded.name = self.name
        loaded.rich_help_panel = self.panel.value
        return loaded


class CommandTable(UserDict[str, Any]):
    """Commands by their names, each imported when it is first asked for.

    A value of ``data`` is a :class:`Command` until then, and what click runs from then on. A name
    that is not in the table is looked up among the commands of installed packages; ``--help`` lists
    none of these, as looking for them would cost each start.
    """

    def get(self, name: str, default: Any = None) -> Any:
        """Return the command of this name, of Headrace or of a package, else the default.

        Raises:
            typer.BadParameter: several packages offer it.
        """
        if name not in self.data and (found := _of_plugin(name)) is not None:
            self.data[name] = found
        return self[name] if name in self.data else default

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, Command):
            found = self.data[name] = found.load()
        return found


def _of_plugin(name: str) -> Command | None:
    commands = installed_plugins(PluginKind.COMMAND)
    offered = [plugin for plugin in commands if plugin.name == name]
    if len(offered) > 1:
        packages = " and ".join(plugin.package for plugin in offered)
        raise typer.BadParameter(f"{name} is offered by {packages}; uninstall one of them")
    return Command(name, Panel.DEVELOP, "", offered[0].factory) if offered else None
