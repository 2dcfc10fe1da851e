"""The files that the process writes, and those that others must not read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.doctor.finding import error, ok, warning
from headrace.doctor.machine import existing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from headrace.config import Config
    from headrace.doctor.finding import Finding

_CERTIFICATES = ("ca_file", "certificate_file", "client_ca_file")

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_state_dir(config: Config) -> Iterator[Finding]:
    """See whether the process can write its state, and whether nobody else can."""
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
    """Look at who may read keys and files of ``${file:...}``, and who may write ``file``.

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
