"""A PostgreSQL server on loopback from Debian's packages, for benchmarks and tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from headrace.core.clock import Deadline
from headrace.core.progress import Silence, signs_of_work
from headrace.devstack.errors import LocalStackError
from headrace.devstack.server import LOOPBACK, free_port, run_to_its_end
from headrace.devstack.wait import FAR_S, SILENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Debian's folder of all versions; their programs are not in the path.
_PROGRAMS = "usr/lib/postgresql/*/bin/postgres"

_USER = "postgres"
_SETTINGS = {"fsync": "off", "max_connections": "30", "shared_buffers": "16MB"}


class NoServerError(Exception):
    """A package is missing that has the server or its user; the message names it."""


@dataclass
class PostgresServer:
    """A running server without passwords, to be filled with databases."""

    port: int
    _numbers: Iterator[int] = field(default_factory=count)

    def url(self, database: str = "postgres") -> str:
        """Return a database's address for SQLAlchemy."""
        return f"postgresql+psycopg://{_USER}@{LOOPBACK}:{self.port}/{database}"

    def run(self, statement: str) -> None:
        """Run one statement of an operator, outside of any transaction."""
        address = f"host={LOOPBACK} port={self.port} user={_USER} dbname=postgres"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement.encode())

    def new_database(self) -> str:
        """Create an empty database; return its address."""
        name = f"test_{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)


def _programs() -> Path:
    """Return the folder of the newest version's programs."""
    found = sorted(Path("/").glob(_PROGRAMS), key=lambda path: float(path.parts[-3]))
    if not found:
        raise NoServerError("no PostgreSQL server here: apt-get install postgresql")
    return found[-1].parent


def as_user(folder: Path) -> list[str]:
    """Return what a command has to begin with: the server refuses to run as root."""
    if os.geteuid() != 0:
        return []
    try:
        user = pwd.getpwnam(_USER)
    except KeyError as error:
        raise NoServerError("no user postgres here: apt-get install postgresql") from error
    os.chown(folder, user.pw_uid, user.pw_gid)
    groups = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return ["setpriv", *groups, "--pdeathsig=KILL", "--"]


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server in a folder of its own until the end; it ends with this process in any case.

    Raises:
        NoServerError: the packages are missing.
    """
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    try:
        prefix, data = as_user(folder), folder / "data"
        made = [
            *prefix,
            str(programs / "initdb"),
            "-D",
            str(data),
            "-U",
            _USER,
            "-A",
            "trust",
            "-N",
        ]
        made += ["--encoding=UTF8", "--locale=C"]
        run_to_its_end(
            made, title="initdb", log_file=folder / "initdb.log", deadline=Deadline.after(FAR_S)
        )
        server = PostgresServer(free_port())
        with running([*prefix, *_command(programs, folder, server.port)], folder) as pid:
            wait_for_server(lambda: server.run("SELECT 1"), folder, pid)
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _command(programs: Path, folder: Path, port: int) -> list[str]:
    options = {"listen_addresses": LOOPBACK, "port": port, "unix_socket_directories": folder}
    settings = [f"--{name}={value}" for name, value in (options | _SETTINGS).items()]
    return [str(programs / "postgres"), "-D", str(folder / "data"), *settings]


@contextmanager
def running(
    command: list[str], folder: Path, ending: signal.Signals = signal.SIGINT
) -> Iterator[int]:
    """Run the command under the supervisor, which ends it when the pipe closes; give its pid.

    ``ending`` asks the server to end: by default PostgreSQL's fast shutdown.
    """
    supervisor = [sys.executable, "-m", "headrace.devstack.supervisor", str(os.getpid()), *command]
    with (folder / "log").open("wb") as log:
        # an interrupt is for the caller, which ends the server: it may come to nothing there, in a
        # callback that raises nothing, and the caller goes on
        process = subprocess.Popen(
            supervisor,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    server = int(process.stdout.readline())
    try:
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.kill(server, ending)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def wait_for_server(
    ask: Callable[[], object],
    folder: Path,
    pid: int,
    refusal: type[Exception] = psycopg.OperationalError,
) -> None:
    """Wait until asking raises no refusal.

    Raises:
        LocalStackError: nothing was done for too long; it has the server's log.
    """

    def answers() -> bool:
        try:
            ask()
        except refusal:
            return False
        return True

    silence = Silence(signs_of_work([pid], [folder]), SILENCE_S)
    if not wait_for(answers, Deadline.after(FAR_S), silence):
        raise LocalStackError((folder / "log").read_text(encoding="utf-8", errors="replace"))
