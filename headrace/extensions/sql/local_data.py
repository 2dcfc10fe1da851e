"""Data that a MariaDB or MySQL server reads from its client: a statement's own, and never a file.

A server that is asked to load local data names the file that it wants, and may name any. So the
connections of this module send what the statement was given, whatever is named, and refuse
requests at any other time.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pymysql.connections import Connection, MySQLResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Bytes of one packet. More make it no faster, and every server takes as many.
_PACKET = 64 << 10


class FeedingConnection(Connection):  # type: ignore[misc]  # untyped
    """A connection of PyMySQL whose statements may read data of this process."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._data: Iterable[memoryview] | None = None
        super().__init__(*arguments, **{**options, "local_infile": True})
        self._local_infile = False  # the server knows that it may ask; files it does not get

    @contextmanager
    def feeding(self, data: Iterable[memoryview]) -> Iterator[None]:
        """Send the data to a statement in the block that reads local data."""
        self._data = data
        try:
            yield
        finally:
            self._data = None

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        data, self._data = self._data, None
        if data is None:
            return super()._read_query_result(unbuffered)
        self._result = None
        self._result = result = _FedResult(self, data)
        result.read()
        self.server_status = result.server_status
        return result.affected_rows


class _FedResult(MySQLResult):  # type: ignore[misc]  # untyped
    """The answer to a statement that reads data."""

    def __init__(self, connection: FeedingConnection, data: Iterable[memoryview]) -> None:
        super().__init__(connection)
        self._data = data

    def _read_load_local_packet(self, _: Any) -> None:
        connection = self.connection
        try:
            for part in self._data:
                for start in range(0, len(part), _PACKET):
                    connection.write_packet(part[start : start + _PACKET])
        finally:
            # the server answers after an empty packet, and not before
            connection.write_packet(b"")
            answer = connection._read_packet()  # noqa: SLF001 - as its own results do
        self._read_ok_packet(answer)
