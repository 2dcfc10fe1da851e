"""Plug-ins: what installed packages offer by a name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PluginKind(Enum):
    """The kinds of plug-ins, by the group of entry points in which a package names them."""

    SINK = "headrace.sinks"
    """The section of a kind of sink, for ``sink: {type: NAME}``, or the factory of a sink, for
    ``sink: {type: custom, factory: NAME}``."""

    PROCESSOR = "headrace.processors"
    """The section of a kind of processor, or the factory of one, as for sinks."""

    DECODER = "headrace.decoders"
    """The factory of a decoder, for ``decode: NAME``, or ``value: NAME`` where keys are found."""

    COMMAND = "headrace.commands"
    """A function or an app of typer, for ``headrace NAME``."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One of them: ``factory`` is its import path; ``package`` offers it, in this version."""

    kind: PluginKind
    name: str
    factory: str
    package: str
    version: str


def installed_plugins(*kinds: PluginKind) -> list[Plugin]:
    """Return what is installed of these kinds, or of all, by kind and name.

    Reads files; imports none of it.
    """
    from importlib import metadata  # noqa: PLC0415 - takes a moment, and few name plug-ins

    found = [
        Plugin(kind, point.name, point.value, point.dist.name, point.dist.version)
        for kind in kinds or PluginKind
        for point in metadata.entry_points(group=kind.value)
        if point.dist is not None
    ]
    return sorted(found, key=lambda plugin: (plugin.kind.value, plugin.name, plugin.package))
