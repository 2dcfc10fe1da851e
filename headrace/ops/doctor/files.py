"""Checks of users' code, of sinks, and of the files that a process reads and writes."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from headrace import config
from headrace.core.errors import ImportPathError
from headrace.core.files import existing
from headrace.core.findings import error, ok, warning
from headrace.core.imports import load_callable, load_factory
from headrace.core.user_text import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from headrace.config import Config, SinkConfig
    from headrace.core.findings import Finding

log = structlog.get_logger(__name__)


def check_code(settings: config.Config) -> Iterator[Finding]:
    """Import each channel's reducer, function or factories; that runs its module."""
    folders = [str(folder) for folder in settings.python_path]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    for name, channel in settings.channels.items():
        called = channel.processor.called(channel)
        if called is not None:
            path, arguments = called
            yield _finding(
                f"code of channel {name}", path, partial(load_callable, path, *arguments)
            )
        decoder = channel.processor.decoder
        if decoder is not None:
            load = partial(load_factory, decoder.factory, decoder.options)
            yield _finding(f"decoder of channel {name}", decoder.factory, load)


def check_sinks(settings: config.Config) -> Iterator[Finding]:
    """Run each sink's own check of where it writes; that imports what it needs."""
    for name, channel in settings.channels.items():
        for sink in config.single_sinks(channel.sink).values():
            yield from _checked(sink, f"of channel {name}")


def _checked(sink: SinkConfig, where: str) -> Iterator[Finding]:
    """Yield what a sink finds; an unexpected error of its check is a finding, too."""
    try:
        for finding in sink.check():
            yield replace(finding, check=f"{finding.check} {where}")
    except Exception as problem:
        log.exception("doctor_check_failed", check=f"sink {where}")
        seen = f"the check of type {sink.type} failed: {describe_error(problem)}"
        yield error(f"sink {where}", seen, "report it to whom the sink is from")


def _finding(what: str, path: str, load: Callable[[], object]) -> Finding:
    try:
        load()
    except ImportPathError as problem:
        return error(what, str(problem), "correct the path or the code")
    return ok(what, path)


_CERTIFICATES = ("ca_file", "certificate_file", "client_ca_file")


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_state_dir(config: Config) -> Iterator[Finding]:
    """Check that the process can write its state, and that no other user can."""
    path = Path(config.state_dir)
    folder = existing(path)
    if not folder.is_dir():
        yield error("state_dir", f"{folder} is no folder", "name another state_dir")
    elif not os.access(folder, os.W_OK | os.X_OK):
        advice = "run headrace as the folder's owner, or change its owner or state_dir"
        yield error("state_dir", f"{folder} cannot be written by this user", advice)
    elif folder != path:
        yield ok("state_dir", f"{path} will be made in {folder}")
    elif path.stat().st_mode & _OTHERS_WRITE:
        advice = f"chmod go-w {path}: who writes there can take the ZooKeeper session over"
        yield warning("state_dir", f"{path} can be written by others", advice)
    else:
        yield ok("state_dir", str(path))


def check_secrets(config: Config, file: Path, read: Collection[Path]) -> Iterator[Finding]:
    """Check the rights to read keys and files of ``${file:...}``, and to write ``file``.

    ``read`` are the files that loading the configuration has read, itself among them.
    """
    if file.stat().st_mode & _OTHERS_WRITE:
        advice = f"chmod go-w {file}: it names the code that runs"
        yield warning("configuration file", f"{file} can be written by others", advice)
    secret = [path for path in dict.fromkeys(read) if path.resolve() != file.resolve()]
    secret += _files_of(config, ("key_file",))
    yield from _readable([*secret, *_files_of(config, _CERTIFICATES)])
    for path in secret:
        if os.access(path, os.R_OK) and path.stat().st_mode & stat.S_IROTH:
            yield warning("secrets", f"{path} can be read by everybody", f"chmod o-r {path}")
    if secret and not any(_readable(secret)):
        yield ok("secrets", f"{len(secret)} files can be read")


def _files_of(config: Config, names: Collection[str]) -> list[Path]:
    """Return the files of these fields in all ``tls`` sections."""
    sections = (config.kafka.tls, config.zookeeper.tls, config.admin.tls)
    found = [getattr(tls, name, None) for tls in sections for name in names]
    return [path for path in found if path is not None]


def _readable(paths: Collection[Path]) -> Iterator[Finding]:
    for path in paths:
        if not os.access(path, os.R_OK):
            reason = "cannot be read by this user" if path.exists() else "does not exist"
            yield error("secrets", f"{path} {reason}", "correct the path, or the file's owner")
