"""The PostgreSQL server of the benchmarks for tests, which are skipped where there is none."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from benchmarks import postgres
from benchmarks.postgres import NoServerError, PostgresServer, running, wait_for_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["PostgresServer", "as_user", "postgres_server", "running", "wait_for_server"]


def as_user(folder: Path) -> list[str]:
    """Return what a command has to begin with: the server refuses to run as root."""
    try:
        return postgres.as_user(folder)
    except NoServerError as error:
        pytest.skip(str(error))


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server in a folder of its own until the end; it ends with this process in any case."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(postgres.postgres_server())
        except NoServerError as error:
            pytest.skip(str(error))
        yield server
