"""Results in columns to a producer of the Python client, without an object for each record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.columns import integer
from headrace.core.records import FIRST_TIME
from headrace.kafka.columnar.library import PATH, FailureStruct, ListsStruct, ValuesStruct, load
from headrace.kafka.errors import LibraryMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.core.records import ResultRecord
    from headrace.core.result_columns import ResultColumns

_PLUGINS = "plugin.library.paths"

#: What the client takes for no choice of a partition, and of a time.
_ANY_PARTITION, _NOW = -1, 0


class ColumnProducer:
    """Produces columns by a client of the Python client's, which has to live as long. One thread.

    What the client cannot take at once is left to its own ``produce``.
    """

    def __init__(self, handle: int) -> None:
        self._library = load()
        self._handle = handle

    @staticmethod
    def plugin(properties: Mapping[str, Any]) -> dict[str, str]:
        """Return the property of a producer that is to take columns beside those that it has.

        None where the library is missing, or where a user has plugins.
        """
        try:
            load()
        except LibraryMissingError:
            return {}
        path = str(PATH)
        # a semicolon stands between plugins
        return {} if properties.get(_PLUGINS) or ";" in path else {_PLUGINS: path}

    @classmethod
    def of_the_newest(cls) -> ColumnProducer | None:
        """Return that of the producer that this thread has just made with :meth:`plugin`."""
        try:
            handle = load().newest()
        except LibraryMissingError:
            return None
        return None if handle is None else cls(handle)

    def produce(self, results: ResultColumns) -> Iterator[ResultRecord]:
        """Produce results; yield each that is not taken, to be produced before this goes on."""
        keys, values = _values_of(results.keys), _values_of(results.values)
        partitions = _numbers(results.partitions, pa.int32(), _ANY_PARTITION)
        times = _times(results.timestamps)
        headers = None if results.headers is None else _lists_of(results.headers)
        start, end = 0, len(results)
        while start < end:
            start = self._library.produce(
                self._handle,
                results.topic.encode(),
                keys,
                values,
                headers,
                _address_of(partitions),
                _address_of(times),
                start,
                end,
            )
            if start < end:
                yield results[start]
                start += 1

    def forget(self) -> None:
        """Clear the list of records that were refused before."""
        self._library.forget(self._handle)

    def failure(self) -> tuple[int, str, str] | None:
        """Return the first failure since then: librdkafka's code, the topic, and what is said."""
        found = FailureStruct()
        if self._library.failure(self._handle, found) == 0:
            return None
        return found.code, found.topic.decode(), found.text.decode("utf-8", "replace")


def _values_of(column: pa.Array) -> ValuesStruct:
    """Return where a column has its values. They are there for as long as the column."""
    addresses = [None if buffer is None else buffer.address for buffer in column.buffers()]
    return ValuesStruct(*addresses, column.offset)


def _lists_of(column: pa.Array) -> ListsStruct:
    """Return where a column of :data:`headrace.core.columns.HEADERS` has its names and values."""
    addresses = [None if buffer is None else buffer.address for buffer in column.buffers()[:2]]
    pairs = (_values_of(column.values.field(name)) for name in ("key", "value"))
    return ListsStruct(*addresses, column.offset, *pairs)


def _numbers(column: pa.Array | None, kind: pa.DataType, nothing: int) -> pa.Array | None:
    """Return numbers of one kind, with ``nothing`` in place of nulls."""
    return None if column is None else pc.fill_null(column.cast(kind), integer(nothing, kind))


def _times(column: pa.Array | None) -> pa.Array | None:
    """Return times, ``_NOW`` for null alone: with now in place of 0 all windows would be over."""
    if column is None:
        return None
    kind = pa.int64()
    is_first = pc.equal(column, integer(_NOW, kind))
    times = pc.if_else(is_first, integer(FIRST_TIME, kind), column)
    return _numbers(times, kind, _NOW)


def _address_of(numbers: pa.Array | None) -> int | None:
    """Return where numbers begin; they are there for as long as the array."""
    if numbers is None or not len(numbers):
        return None
    _, data = numbers.buffers()
    first: int = data.address + numbers.offset * numbers.type.bit_width // 8
    return first
