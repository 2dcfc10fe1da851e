"""Commands of the command line, named before they are imported."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from headrace.core.options import Panel, command_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
        module, _, attribute = self.path.partition(":")
        found = getattr(import_module(module), attribute)
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


class CommandTable(MutableMapping[str, Any]):
    """Commands by their names, each imported when it is first asked for."""

    def __init__(self, commands: Iterable[Command], loaded: dict[str, Any]) -> None:
        self.listed = {command.name: command for command in commands}
        self._loaded = loaded

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded and name in self.listed:
            self._loaded[name] = self.listed[name].load()
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        self.listed.pop(name, None)
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self.listed, *self._loaded}))

    def __len__(self) -> int:
        return len({*self.listed, *self._loaded})

    def __contains__(self, name: object) -> bool:
        return name in self.listed or name in self._loaded
