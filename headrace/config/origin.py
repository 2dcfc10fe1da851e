"""Where a configuration comes from, and the defaults that follow from it."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.process_records import default_state_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import ValidationInfo


@dataclass(frozen=True, slots=True)
class Origin:
    """The absolute path of the file, and the process's surroundings when it was read."""

    file: Path
    environ: Mapping[str, str] = field(repr=False)
    host: str

    @classmethod
    def of(cls, file: Path, environ: Mapping[str, str] | None = None) -> Origin:
        """Return the origin of ``file`` on this host. Links in the path are kept as they are."""
        return cls(
            Path(os.path.abspath(file)),  # noqa: PTH100 - Path.absolute keeps "..", two names then
            os.environ if environ is None else environ,
            socket.gethostname(),
        )

    @property
    def folder(self) -> Path:
        """What relative paths in the file start from."""
        return self.file.parent

    @property
    def instance_id(self) -> str:
        """The host's name and 8 hexadecimal digits that stand for the file."""
        host = re.sub(r"[^a-zA-Z0-9._-]", "-", self.host) or "localhost"
        return f"{host}-{hashlib.sha256(os.fsencode(self.file)).hexdigest()[:8]}"

    @property
    def state_dir(self) -> Path:
        """The folder that systemd provides, else the user's own for such data."""
        return default_state_dir(self.environ)


def origin_of(info: ValidationInfo) -> Origin:
    """Return the origin handed to validation.

    A model built in code has none; the current folder takes the place of the file's.
    """
    context: Any = info.context
    return context if isinstance(context, Origin) else Origin.of(Path("headrace.yaml"))
