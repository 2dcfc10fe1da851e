"""One schema registry: Apicurio, which has the API that Confluent's has. It needs a later Java."""

from __future__ import annotations

import os
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from headrace.devstack.jars import APICURIO, cached
from headrace.devstack.jvm import COMMON_FLAGS, SHORT_LIVED, require_java
from headrace.devstack.server import LOOPBACK, LocalServer, free_port

if TYPE_CHECKING:
    from headrace.core.clock import Deadline

#: What its classes are compiled for.
MINIMUM_JAVA = 21

#: Where it has Confluent's API.
_API = "/apis/ccompat/v7"

_MAIN = "quarkus-run.jar"

#: The file in which H2 keeps schemas. It is written with each commit, so that a kill loses none.
_FILE = "jdbc:h2:file:{file};WRITE_DELAY=0"

_SETTINGS = {
    "quarkus.http.host": LOOPBACK,
    "apicurio.storage.kind": "sql",
    "apicurio.storage.sql.kind": "h2",
    "quarkus.log.level": "WARN",
}


class SchemaRegistryServer(LocalServer):
    """The registry. Its schemas live in ``directory`` and survive a restart."""

    def __init__(self, directory: Path, *, port: int | None = None) -> None:
        super().__init__("registry", directory)
        self.port = free_port() if port is None else port

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """Return the address for ``registry.url``."""
        return f"http://{self.address}{_API}"

    def _command(self, deadline: Deadline) -> list[str]:
        java = require_java(MINIMUM_JAVA)
        settings = _SETTINGS | {
            "quarkus.http.port": str(self.port),
            "apicurio.datasource.url": _FILE.format(file=self.directory / "schemas"),
        }
        flags = [f"-D{name}={value}" for name, value in settings.items()]
        program = unpacked(deadline) / _MAIN
        return [
            str(java.path),
            "-Xmx400m",
            *COMMON_FLAGS,
            SHORT_LIVED,
            *flags,
            "-jar",
            str(program),
        ]

    def _answers(self, seconds: float) -> bool:
        try:
            return httpx.get(f"{self.url}/subjects", timeout=seconds, trust_env=False).is_success
        except httpx.HTTPError:
            return False


def unpacked(deadline: Deadline | None = None) -> Path:
    """Return the folder with the program, fetched and unpacked once per user. Blocks.

    Raises:
        LocalStackError: it could not be fetched, or is not the pinned one.
    """
    (archive,) = cached(APICURIO, deadline=deadline)
    folder = archive.parent.with_name(f"{archive.parent.name}-unpacked")
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as new:
        with tarfile.open(archive) as files:
            files.extractall(new, filter="data")
        try:
            os.rename(new, folder)  # noqa: PTH104 - whole, or not at all
        except OSError:
            if not folder.exists():  # else another process was first
                raise
        else:
            Path(new).mkdir()  # for the end of the block
    return folder
