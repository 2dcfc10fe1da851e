"""The user's code: can it be imported, and called as it will be?"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from headrace import config
from headrace.doctor.finding import error, ok
from headrace.errors import ImportPathError
from headrace.importing import load_callable, load_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.doctor.finding import Finding


def check_code(settings: config.Config) -> Iterator[Finding]:
    """Import each channel's reducer, function or factories; that runs its module."""
    folders = [str(folder) for folder in settings.python_path]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    for name, channel in settings.channels.items():
        path, arguments = _called(channel)
        if path is not None:
            yield _finding(
                f"code of channel {name}", path, partial(load_callable, path, *arguments)
            )
        for sink in config.single_sinks(channel.sink).values():
            if isinstance(sink, config.CustomSinkConfig):
                load = partial(load_factory, sink.factory, sink.options)
                yield _finding(f"sink of channel {name}", sink.factory, load)


def _finding(what: str, path: str, load: Callable[[], object]) -> Finding:
    try:
        load()
    except ImportPathError as problem:
        return error(what, str(problem), "correct the path or the code")
    return ok(what, path)


def _called(channel: config.ChannelConfig) -> tuple[str | None, tuple[str, ...]]:
    """Return the import path, if it has code, and what is called with, if that is known."""
    match channel.processor:
        case config.SparkProcessorConfig(arrow=None, reducer=path):
            return path, ("df", "batch")
        case config.SparkProcessorConfig(arrow=path):
            return path, ("table", "batch")
        case config.ArrowProcessorConfig(reducer=path):
            return path, ("table", "batch")
        case config.CustomProcessorConfig(factory=path):
            return path, ()
        case config.SimpleProcessorConfig(deliver=what):
            assert isinstance(channel.sink, config.FunctionSinkConfig)
            return channel.sink.function, (what,)
