"""A MariaDB server on loopback from Debian's packages, for the tests that want one."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from headrace.devstack.server import LOOPBACK, free_port
from headrace.devstack.wait import FAR_S
from tests.postgres import running, wait_for_server

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Debian has the server where only root's path leads.
_PROGRAMS = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"

#: The statements that make its tables.
_SYSTEM_TABLES = Path("/usr/share/mysql/mysql_system_tables.sql")

#: Log in without a password, and cost the machine little.
_SETTINGS = {
    "skip-grant-tables": None,
    "skip-log-bin": None,
    "innodb-flush-log-at-trx-commit": 0,
    "innodb-buffer-pool-size": "16M",
    "character-set-server": "latin1",
    "default-time-zone": "-05:00",
    "sql-mode": "",
}


@dataclass
class MariaDbServer:
    """A running server without passwords, to be filled with databases.

    It is set up as badly for the sink as servers are: text is cut where it is too long, the time
    zone is not UTC, and new tables are of an old character set.
    """

    port: int
    _numbers: Iterator[int] = field(default_factory=count)

    def url(self, database: str = "mysql") -> str:
        """Return a database's address for SQLAlchemy."""
        return f"mariadb+pymysql://root@{LOOPBACK}:{self.port}/{database}"

    def run(self, statement: str) -> None:
        """Run one statement of an operator."""
        run(self.url(), statement)

    def new_database(self) -> str:
        """Create an empty database; return its address."""
        name = f"test_{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)


def run(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements in one transaction; return the rows of the last one."""
    rows: list[tuple[Any, ...]] = []
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
            rows = [tuple(row) for row in result] if result.returns_rows else []
    return rows


def _program() -> str:
    found = shutil.which("mariadbd", path=_PROGRAMS)
    if found is None:
        pytest.skip("no MariaDB server here: apt-get install mariadb-server-core")
    return found


def _make_system_tables(program: str, folder: Path) -> None:
    """Make the tables that a server without users needs, as ``mariadb-install-db`` does."""
    data, script = folder / "data", folder / "tables.sql"
    data.mkdir()
    tables = _SYSTEM_TABLES.read_text(encoding="utf-8")
    script.write_text(f"CREATE DATABASE mysql;\nUSE mysql;\n{tables}", encoding="utf-8")
    with script.open("rb") as statements, (folder / "tables.log").open("wb") as log:
        subprocess.run(
            [program, "--no-defaults", f"--datadir={data}", f"--user={_user()}", "--bootstrap"],
            stdin=statements,
            stdout=log,
            stderr=log,
            check=True,
            timeout=FAR_S,
        )


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


@contextmanager
def mariadb_server() -> Iterator[MariaDbServer]:
    """Run a server in a folder of its own until the end; it ends with this process in any case.

    The test is skipped where the packages are missing.
    """
    program = _program()
    folder = Path(tempfile.mkdtemp(prefix="headrace-mariadb-"))
    try:
        _make_system_tables(program, folder)
        server = MariaDbServer(free_port())
        options = {
            "bind-address": LOOPBACK,
            "port": server.port,
            "socket": folder / "socket",
            "pid-file": folder / "pid",
            "user": _user(),
            **_SETTINGS,
        }
        settings = [f"--{n}" if value is None else f"--{n}={value}" for n, value in options.items()]
        command = [program, "--no-defaults", f"--datadir={folder / 'data'}", *settings]
        with running(command, folder, signal.SIGTERM) as pid:
            wait_for_server(lambda: server.run("SELECT 1"), folder, pid, OperationalError)
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)
