"""The token and the address of a process, where its commands find them.

In ``<state_dir>/<instance_id>/`` lie ``admin.json`` with the address, while the API is served, and
``admin-token``, readable by its owner alone, where the configuration names no token. That one is
made at the first start and stays, so that what was given to a script works after a restart; who
deletes it gets another one at the next start.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config.model.admin import SHORTEST_TOKEN
from headrace.errors import StartError
from headrace.files import write_whole

if TYPE_CHECKING:
    from headrace.config import Config

TOKEN_FILE = "admin-token"  # noqa: S105 - the name of a file
ADDRESS_FILE = "admin.json"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an API is served, and by which process."""

    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class Folder:
    """The process's folder."""

    path: Path

    @classmethod
    def of(cls, config: Config) -> Folder:
        """Return the folder of a configuration's process."""
        return cls(Path(config.state_dir) / config.instance_id)

    @property
    def token_file(self) -> Path:
        """Where a token that was made is."""
        return self.path / TOKEN_FILE

    @property
    def address_file(self) -> Path:
        """Where the address is."""
        return self.path / ADDRESS_FILE

    def token(self) -> str:
        """Return the token that was made, or make one of 256 random bits. Blocks for a file.

        Raises:
            StartError: the file cannot be read or written.
        """
        known = self.read_token()
        if known is not None:
            return known
        token = secrets.token_urlsafe(32)
        self._write(self.token_file, f"{token}\n")
        return token

    def read_token(self) -> str | None:
        """Return the token that was made, None where there is none.

        Raises:
            StartError: the file cannot be read.
        """
        try:
            text = self.token_file.read_text(encoding="utf-8").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(
                f"{self.token_file} cannot be read: {error}; use the process's own user, or delete "
                "the file to have another one made"
            ) from error
        return text if len(text) >= SHORTEST_TOKEN else None

    def write_address(self, url: str) -> None:
        """Say where the API is served. Blocks for as long as a file takes.

        Raises:
            StartError: the file cannot be written.
        """
        self._write(self.address_file, json.dumps({"url": url, "pid": os.getpid()}))

    def forget_address(self) -> None:
        """Remove what this process said, but not what a later one did."""
        found = self.read_address()
        if found is not None and found.pid == os.getpid():
            with suppress(OSError):
                self.address_file.unlink(missing_ok=True)

    def read_address(self) -> Address | None:
        """Return where the API is served, None where nobody said."""
        try:
            found = json.loads(self.address_file.read_text(encoding="utf-8"))
            return Address(str(found["url"]), int(found["pid"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, file: Path, text: str) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(file, text)
        except OSError as error:
            raise StartError(
                f"{file} cannot be written: {error.strerror}; give the process a state_dir that it "
                "may write to"
            ) from error
