"""Re-keying: records as they are, by another key, for a topic where all of a key are together."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from headrace.core.columns import HEADERS
from headrace.core.errors import PoisonRecordError, RetryableError
from headrace.core.letter_headers import OUR_HEADERS, Failure, LetterHeaders, Stage
from headrace.core.misfits import custom_reason
from headrace.core.records import TopicPartition
from headrace.core.tables import SCHEMA, whole, with_left_out
from headrace.core.user_text import describe_error, plain_error
from headrace.extensions.keyed.api import Event
from headrace.extensions.keyed.codecs import DECODERS, field_of, key_bytes, why_unread
from headrace.extensions.keyed.letters import dead_letter
from headrace.extensions.keyed.tables import in_this_thread
from headrace.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.core.call_watch import CallWatch
    from headrace.core.decoders import CustomDecoder
    from headrace.extensions.keyed.tables import PartsRunner
    from headrace.sinks.kafka import Transactions
    from headrace.sinks.micro_batch import MicroBatch

#: The header that says which record one was made of: ``topic/partition/offset``.
FROM_HEADER = "headrace-from"

#: What a record becomes. ``topic`` is null where it is left out.
REKEYED = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", SCHEMA.field("timestamp").type),
        ("headers", HEADERS),
    ]
)


@dataclass(frozen=True, slots=True)
class RekeySettings:
    """The source of records' new keys, and the topics that they go to.

    ``key`` is ``key``, ``value.<field>``, ``headers.<name>`` or an import path, whose function
    comes with it. ``dead_letters`` is the topic for ``undecodable: dead_letter``, and ``letters``
    says what headers they have. ``decoder`` reads values in place of what ``value`` names, and so
    does ``framed``, one of ours that reads many at once.
    """

    key: str
    topic: str
    value: str = "json"
    undecodable: str = "fail"
    dead_letters: str | None = None
    letters: LetterHeaders = OUR_HEADERS
    decoder: Callable[[bytes], Any] | None = None
    framed: CustomDecoder | None = None


class _Row(NamedTuple):
    """One record. ``ts`` is in milliseconds, -1 where it has no time."""

    topic: str
    partition: int
    offset: int
    ts: int
    key: bytes | None
    value: bytes | None
    headers: list[dict[str, Any]] | None
    #: What the value was read as, and why it was not, where all are read at once.
    read: Any = None
    fault: str | None = None


#: A row of :data:`REKEYED`, without what it has of the record: topic, key and headers.
_Made = tuple["str | None", "bytes | None", "list[dict[str, Any]] | None"]


class Rekey:
    """Makes a table of :data:`REKEYED` of records: a row for each, in their order. Any thread.

    ``function`` gets an :class:`headrace.keyed.Event` and returns its key, where the settings name
    one; it is sent to Spark's workers. With ``calls`` each record is noted there before code of the
    user's gets it, and a call that takes too long is interrupted.

    Raises:
        PoisonRecordError: a record has no such key, and ``undecodable`` is ``fail``.
        RetryableError: the decoder or the function said so.
        JobTimeoutError: the decoder or the function did not return in time.
    """

    def __init__(
        self,
        settings: RekeySettings,
        function: Callable[[Event[Any]], Any] | None = None,
        calls: CallWatch | None = None,
    ) -> None:
        self.settings = settings
        self.function = function
        # what reads a key or a field of JSON returns in any case
        self.calls = None if function is None and settings.decoder is None else calls
        self.read_value = settings.framed or settings.decoder or DECODERS[settings.value]
        self.steps = settings.key.split(".")[1:]

    def __call__(self, records: pa.Table) -> pa.Table:
        """Return the records by their new keys."""
        times = [
            -1 if micros is None else micros // 1000
            for micros in records.column("timestamp").cast(pa.int64()).to_pylist()
        ]
        names = ("topic", "partition", "offset", "key", "value", "headers")
        topics, partitions, offsets, *rest = (records.column(n).to_pylist() for n in names)
        columns = [topics, partitions, offsets, times, *rest, *self._read_together(records)]
        rows = map(_Row, *columns)
        with nullcontext() if self.calls is None else self.calls.job():
            made = [self._make_key(row) for row in rows]
        to, keys, headers = zip(*made, strict=True) if made else ((), (), ())
        arrays = [
            pa.array(to, pa.string()),
            pa.array(keys, pa.binary()),
            records.column("value"),
            records.column("timestamp"),
            pa.array(headers, HEADERS),
        ]
        return pa.Table.from_arrays(arrays, schema=REKEYED)

    def _read_together(self, records: pa.Table) -> Sequence[Sequence[Any]]:
        """Return what all values are read as, and why they are not, where that is one call."""
        framed = self.settings.framed
        reads = self.function is not None or self.settings.key.startswith("value.")
        if framed is None or not reads or not records.num_rows:
            return ()
        columns = (whole(records.column(name)) for name in ("value", "headers"))
        return list(zip(*framed.objects(*columns), strict=True))

    def _make_key(self, row: _Row) -> _Made:
        if self.calls is not None:
            place = f"the key of offset {row.offset} of {row.topic}-{row.partition}"
            if self.calls.has_hung(row.partition, None, place):
                return self._without_key(row, _HANGS)
            self.calls.call(row.partition, None, place.encode())
        try:
            key = self._key_of(row)
            if key is None:
                return self._without_key(row, f"it has no {self.settings.key}")
        except RetryableError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of a value, or of the user's function
            raised = plain_error(error)
            reason = f"its {self.settings.key} cannot be read: {describe_error(raised)}"
            return self._without_key(row, reason, raised)
        came_from = f"{row.topic}/{row.partition}/{row.offset}".encode()
        return (
            self.settings.topic,
            key,
            [*(row.headers or ()), {"key": FROM_HEADER, "value": came_from}],
        )

    def _without_key(self, row: _Row, reason: str, raised: BaseException | None = None) -> _Made:
        """Handle a record that has no such key, as ``undecodable`` says."""
        settings = self.settings
        if settings.undecodable == "fail":
            partition = TopicPartition(row.topic, row.partition)
            raise PoisonRecordError(partition, row.offset, reason) from raised
        if settings.undecodable == "skip":
            return None, None, None
        said = {
            "topic": row.topic,
            "partition": str(row.partition),
            "offset": str(row.offset),
            "timestamp": str(row.ts),
        }
        failure = Failure(reason, raised, Stage.KEY, self.function or Rekey)
        *_, headers = dead_letter(
            settings.letters, row.key, row.value, row.ts, failure, said, row.headers
        )
        return settings.dead_letters, row.key, headers

    def _key_of(self, row: _Row) -> bytes | None:
        found = self._find_key(row)
        return None if found is None else key_bytes(found)

    def _find_key(self, row: _Row) -> Any:
        if self.function is not None:
            headers = tuple((each["key"], each["value"]) for each in row.headers or ())
            return self.function(
                Event(self._read(row), row.ts, row.topic, row.partition, row.offset, headers)
            )
        if not self.steps:
            return row.key
        if self.settings.key.startswith("headers."):
            name = self.settings.key.removeprefix("headers.")
            named = [each["value"] for each in row.headers or () if each["key"] == name]
            return named[-1] if named else None
        return field_of(self._read(row), self.steps)

    def _read(self, row: _Row) -> Any:
        value = row.value
        if value is None:
            return None
        if self.settings.framed is not None:
            if row.fault is not None:
                raise ValueError(custom_reason(row.fault))
            return row.read
        try:
            return self.read_value(value)
        except RetryableError:
            raise
        except (Exception, SystemExit) as error:
            raised = why_unread(error, value, is_own=self.settings.decoder is not None)
            if raised is error:
                raise
            raise raised from error


#: Why a record has no key that the user's code did not return for.
_HANGS = "it has no key: the code does not return when it is called with it, or ends its process"


class RekeyFunction:
    """The reducer of ours in front of the engines: records in, the same by key out."""

    def __init__(self, rekey: Rekey) -> None:
        self._rekey = rekey

    def __call__(self, table: pa.Table, batch: MicroBatch) -> pa.Table:
        """Re-key in this thread; see :meth:`reduce`."""
        return self.reduce(table, batch, in_this_thread, 1)

    def reduce(
        self,
        table: pa.Table,
        batch: MicroBatch,  # noqa: ARG002 - records say themselves where they are from
        run: PartsRunner,
        tasks: int,
    ) -> pa.Table:
        """Return what is to be produced, in the order of the records.

        ``run`` re-keys parts of them, up to ``tasks``.

        Raises:
            PoisonRecordError: a record has no such key, and ``undecodable`` is ``fail``.
        """
        step = max(1, -(-table.num_rows // tasks))
        starts = range(0, table.num_rows, step)
        parts = [table.slice(start, step).combine_chunks() for start in starts]
        result = pa.concat_tables(
            [REKEYED.empty_table(), *(run(self._rekey, parts) if parts else ())]
        )
        is_kept = pc.is_valid(result.column("topic"))
        return with_left_out(result.filter(is_kept), table.filter(pc.invert(is_kept)))


class RekeySink(KafkaSink):
    """Produces re-keyed records, and dead letters, in one transaction with the offsets.

    ``prepare`` has the topics ready; it may block, and raise a StartError.
    """

    def __init__(self, transactions: Transactions, prepare: Callable[[], None]) -> None:
        super().__init__(transactions)
        self._prepare = prepare

    @override
    def open(self) -> None:
        self._prepare()
