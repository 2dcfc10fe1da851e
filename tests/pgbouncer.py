"""A PgBouncer on loopback in front of a PostgreSQL server, from Debian's package."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from headrace.devstack.server import LOOPBACK, free_port
from tests.postgres import as_user, running, wait_for_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres import PostgresServer

#: Debian has it where only root's path leads.
_PROGRAMS = ("/usr/sbin", "/usr/bin", "/usr/local/bin")

_CONFIGURATION = """
[databases]
* = host={host} port={server} user=postgres
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {connections}
max_client_conn = 100
"""


@dataclass(frozen=True)
class Pooler:
    """A running pooler, to databases of its server."""

    port: int

    def url(self, database_url: str) -> str:
        """Return a database's address through the pooler."""
        name = database_url.rpartition("/")[2]
        return f"postgresql+psycopg://postgres@{LOOPBACK}:{self.port}/{name}"


@contextmanager
def pgbouncer(
    server: PostgresServer, mode: str = "transaction", connections: int = 2
) -> Iterator[Pooler]:
    """Run a pooler with so many connections to each database; it ends with this process.

    The test is skipped where the package is missing.
    """
    program = shutil.which("pgbouncer", path=":".join(_PROGRAMS))
    if program is None:
        pytest.skip("no PgBouncer here: apt-get install pgbouncer")
    folder = Path(tempfile.mkdtemp(prefix="headrace-pgbouncer-"))
    try:
        prefix, pooler = as_user(folder), Pooler(free_port())
        settings = folder / "pgbouncer.ini"
        text = _CONFIGURATION.format(
            host=LOOPBACK,
            server=server.port,
            port=pooler.port,
            mode=mode,
            connections=connections,
        )
        settings.write_text(text, encoding="utf-8")
        address = pooler.url(server.url()).replace("+psycopg", "")
        with running([*prefix, program, str(settings)], folder) as pid:
            wait_for_server(lambda: psycopg.connect(address).close(), folder, pid)
            yield pooler
    finally:
        shutil.rmtree(folder, ignore_errors=True)
