"""The facts of a batch of keys in columns: which are late, which keys are plain, and as events."""

from __future__ import annotations

from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.keyed.api import Event
from headrace.extensions.keyed.codecs import DECODERS
from headrace.extensions.keyed.tables import FACT, Fact, header_pairs, named_tuples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from headrace.core.decoders import CustomDecoder
    from headrace.extensions.keyed.settings import FoldSettings

#: The classes of a fact's lateness. One that is too late does not reach the reducer.
IN_TIME, LATE, TOO_LATE = range(3)


def lateness_of(late_by: npt.NDArray[np.int64], settings: FoldSettings) -> npt.NDArray[np.int8]:
    """Decide for each fact whether it is late, or too late.

    ``late_by`` is in milliseconds of stream time, as ``times`` in rows.py computes it.
    """
    found = np.where(late_by > 0, np.int8(LATE), np.int8(IN_TIME))
    if settings.grace is not None:
        found[late_by > settings.grace] = TOO_LATE
    return found


class FactColumns:
    """The facts of a batch of keys, in columns.

    Named tuples are made for one key at a time: where those of all keys live at once, the
    interpreter looks through them for garbage again and again, which takes as long as all else.
    """

    def __init__(self, facts: pa.ListArray, settings: FoldSettings) -> None:
        self._ends = pc.subtract(facts.offsets, facts.offsets[0]).to_numpy()
        self._facts = facts.flatten()
        self._framed = settings.framed
        self._is_unreadable = False
        #: Set where the values of the key that comes next are not to be read here.
        self.is_left_unread = False
        late_by = self._facts.field("late_by").to_numpy()
        self._lateness = lateness_of(late_by, settings)
        #: How many facts each key has, how many of them are late, and how many too late.
        self.sizes: npt.NDArray[np.int64] = np.diff(self._ends)
        self.late = self._counts(self._lateness > IN_TIME)
        self.too_late = self._counts(self._lateness == TOO_LATE)

    def _counts(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Return how many facts of each key are chosen."""
        if not chosen.any():
            return np.zeros(len(self.sizes), np.int64)
        sums = np.concatenate([[0], np.cumsum(chosen, dtype=np.int64)])
        counts: npt.NDArray[np.int64] = sums[self._ends[1:]] - sums[self._ends[:-1]]
        return counts

    def last(self, name: str) -> pa.Array:
        """Return a column of the last fact of each key, all of which have one."""
        return self._facts.field(name).take(pa.array(self._ends[1:] - 1))

    def of(self, index: int) -> list[Fact]:
        """Return a key's facts."""
        start, end = self._ends[index : index + 2].tolist()
        part = self._facts.slice(start, end - start)
        columns = (listed(part.field(name)) for name in FACT.names)
        return named_tuples(Fact, zip(*columns, self._lateness[start:end].tolist(), strict=True))

    def events(
        self, partitions: Sequence[int], read: Callable[[bytes], Any]
    ) -> Iterator[list[Event[Any]] | None]:
        """Yield each key's facts as the reducer sees them, None where they need a closer look.

        ``partitions`` are those of the keys. There is no call of Python's for each fact but that
        which reads its value.
        """
        facts, sizes = self._facts, self.sizes.tolist()
        headers = facts.field("headers")
        fields = zip(
            self._values(read),
            listed(facts.field("ts")),
            _repeated(facts.field("source")),
            chain.from_iterable(map(repeat, partitions, sizes)),
            listed(facts.field("offset")),
            repeat(())
            if headers.null_count == len(headers)
            else map(header_pairs, headers.to_pylist()),
            map(bool, self._lateness.tolist()) if self.late.any() else repeat(False),
            strict=False,
        )
        new: Any = tuple.__new__
        events = map(new, repeat(Event), fields)
        for size, too_late in zip(sizes, self.too_late.tolist(), strict=True):
            self._is_unreadable = False
            found = list(islice(events, size))
            yield None if self._is_unreadable or too_late else found

    def _values(self, read: Callable[[bytes], Any]) -> Iterator[Any]:
        """Return values as they are read; a note is taken where one cannot be."""
        if self._framed is not None:
            return self._read_together(self._framed)
        values = listed(self._facts.field("value"))
        return iter(values) if read is DECODERS["bytes"] else self._read(values, read)

    def _read_together(self, decoder: CustomDecoder) -> Iterator[Any]:
        for value, reason in decoder.objects(
            self._facts.field("value"), self._facts.field("headers")
        ):
            if reason is not None:
                self._is_unreadable = True
            yield value

    def _read(self, values: Iterable[bytes | None], read: Callable[[bytes], Any]) -> Iterator[Any]:
        for data in values:
            try:
                yield None if data is None or self.is_left_unread else read(data)
            except (Exception, SystemExit):  # noqa: BLE001 - which one it is, is found out one by one
                self._is_unreadable = True
                yield None


def plain_keys(
    extra: pa.Array, facts: FactColumns, settings: FoldSettings
) -> npt.NDArray[np.bool_]:
    """Return which keys have facts for the reducer, and nothing else that a fold has rules for.

    Nothing is due between their facts, and none of these is kept from the reducer: so all that is
    left to be done is to call it for one after the other. ``extra`` is a column of ``ROWS``.
    """
    found: npt.NDArray[np.bool_] = extra.is_null().to_numpy(zero_copy_only=False)
    found &= (facts.sizes > 0) & (facts.too_late == 0)
    return found if settings.ttl is None else np.zeros_like(found)


def listed(column: pa.Array) -> list[Any]:
    """Return a column's values; of nothing but nulls, and of numbers, it is soon done."""
    if column.null_count == len(column):
        return [None] * len(column)
    is_whole = pa.types.is_integer(column.type) and not column.null_count
    values: list[Any] = column.to_numpy().tolist() if is_whole else column.to_pylist()
    return values


def _repeated(column: pa.Array) -> Iterator[str]:
    """Return the values of a column that has few: one object for each of them."""
    encoded = column.dictionary_encode()
    return map(encoded.dictionary.to_pylist().__getitem__, listed(encoded.indices))
