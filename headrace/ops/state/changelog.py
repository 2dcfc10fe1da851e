"""The changelog of a channel as a table, and the files that it is exported to."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.records import TopicPartition, offset_of
from headrace.extensions.keyed.changelog import row_of
from headrace.extensions.keyed.codecs import to_json
from headrace.extensions.keyed.row import KeyRow
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.source import read_log
from headrace.ops.offsets.reader import ANSWER_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Self

    from headrace.kafka.ports import TopicInfo


class Logged(NamedTuple):
    """A key's entry in the changelog: a row or a deletion, in the record at an offset."""

    offset: int
    row: KeyRow | None


class ChangelogTable:
    """Reads committed records of a changelog, a partition at a time. Every method blocks.

    Raises:
        KafkaUnavailableError: the brokers did not answer.
    """

    def __init__(self, properties: Mapping[str, Any], group: str, topic: str) -> None:
        self.topic = topic
        self._properties = {**properties, "isolation.level": "read_committed"}
        self._group = group
        self.catalog = KafkaTopicCatalog(self._properties, group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.catalog.close()

    @property
    def exists(self) -> bool:
        """Return whether there is such a topic."""
        return self.topic in self.catalog.describe([self.topic], self._answer_deadline())

    @property
    def partitions(self) -> int:
        """Return how many partitions there are; see :attr:`info`."""
        return self.info.partitions

    @property
    def info(self) -> TopicInfo:
        """Return the topic.

        Raises:
            UsageError: there is none.
        """
        found = self.catalog.describe([self.topic], self._answer_deadline())
        if self.topic not in found:
            raise UsageError(
                f"topic {self.topic}, the state of group {self._group}, does not exist; "
                "start the channel once, or create it with headrace state topics --create"
            )
        return found[self.topic]

    def ends(self, number: int) -> tuple[int, int]:
        """Return the first offset of a partition and where it ends."""
        return self.catalog.watermarks(TopicPartition(self.topic, number), self._answer_deadline())

    def records(
        self, number: int, ends: tuple[int, int] | None = None
    ) -> Iterator[tuple[bytes, Logged]]:
        """Yield all records of a partition up to its present end, or between two, in order."""
        partition = TopicPartition(self.topic, number)
        bounds = ends or self.ends(number)
        for record in read_log(self._properties, self._group, partition, *bounds):
            key = record.key()
            if key is not None:
                yield key, Logged(offset_of(record), row_of(record))

    def row(self, number: int, key: bytes) -> KeyRow | None:
        """Return the row of one key."""
        found = None
        for name, logged in self.records(number):
            if name == key:
                found = logged.row
        return found

    def rows(self, number: int, ends: tuple[int, int] | None = None) -> dict[bytes, KeyRow]:
        """Return the rows of a partition, by the order of the keys' bytes."""
        last = dict(self.records(number, ends))
        return {key: row for key in sorted(last) if (row := last[key].row) is not None}

    def _answer_deadline(self) -> Deadline:
        return Deadline.after(ANSWER_TIMEOUT, SYSTEM_CLOCK)


# --- files ---------------------------------------------------------------------------------------

FORMAT_VERSION = 1
_VERSION_KEY = "headrace_state"
_PARQUET = b"PAR1"


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """The data that goes with the rows of a partition.

    The state is of the records before ``offset``, which is None where the channel was writing.
    """

    rows: int
    offset: int | None
    stream_time: int | None


@dataclass(frozen=True, slots=True)
class FileHead:
    """The origin of an export. ``topic_id`` is that of the input."""

    channel: str
    group: str
    topic: str
    topic_id: str
    partitions: int
    exported: str

    def document(self) -> dict[str, Any]:
        """Return it as it stands in files."""
        return {_VERSION_KEY: FORMAT_VERSION, **asdict(self)}

    @classmethod
    def of(cls, document: Any, file: Path) -> FileHead:
        """Return what :meth:`document` made.

        Raises:
            UsageError: it is something else.
        """
        version = document.get(_VERSION_KEY) if isinstance(document, dict) else None
        if version is None:
            raise UsageError(f"{file} is no export of state: it does not begin with {_VERSION_KEY}")
        if version != FORMAT_VERSION:
            raise UsageError(
                f"{file} has format version {version!r}; this Headrace knows {FORMAT_VERSION}, "
                "so import it with the one that wrote it"
            )
        if not isinstance(document.get("partitions"), int):
            raise UsageError(f"{file}: the first line has no number of partitions")
        try:
            return cls(**{name: document[name] for name in cls.__dataclass_fields__})
        except KeyError as error:
            raise UsageError(f"{file}: the first line has no {error.args[0]}") from error


class StateWriter(Protocol):
    """Writes one partition after the other."""

    def write(self, number: int, rows: Mapping[bytes, KeyRow], end: PartitionEnd) -> None:
        """Write the rows of a partition, and what goes with them."""
        ...


class _Lines:
    """One JSON document a line: the head, and of each partition its rows and its end."""

    def __init__(self, file: Any, head: FileHead) -> None:
        self._file = file
        self._line(head.document())

    def write(self, number: int, rows: Mapping[bytes, KeyRow], end: PartitionEnd) -> None:
        for key, row in rows.items():
            self._line({"partition": number, **_line_of(key, row)})
        self._line({"partition": number, "end": asdict(end)})

    def _line(self, document: dict[str, Any]) -> None:
        self._file.write(to_json(document) + b"\n")


def _line_of(key: bytes, row: KeyRow) -> dict[str, Any]:
    """Return a row as a line has it: the state as JSON where that gives the same bytes again."""
    line: dict[str, Any] = {}
    try:
        line["key"] = key.decode()
    except UnicodeDecodeError:
        line["key_hex"] = key.hex()
    if row.state is not None:
        try:
            decoded = json.loads(row.state)
            exact = to_json(decoded) == row.state
        except (ValueError, TypeError):
            exact = False
        if exact:
            line["state"] = decoded
        else:
            line["state_base64"] = b64encode(row.state).decode()
    if row.extra:
        line["timers"] = json.loads(row.extra)
    return line


_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("state", pa.binary()),
        ("timers", pa.string()),
    ]
)
_HEAD, _ENDS = b"headrace_state", b"headrace_ends"


class _Parquet:
    """A table of all rows; head and ends are in the file's metadata."""

    def __init__(self, file: Any, head: FileHead) -> None:
        self._writer = pq.ParquetWriter(file, _SCHEMA)
        self._head = head
        self._ends: dict[str, Any] = {}

    def write(self, number: int, rows: Mapping[bytes, KeyRow], end: PartitionEnd) -> None:
        columns = [
            [number] * len(rows),
            list(rows),
            [row.state for row in rows.values()],
            [row.extra.decode() if row.extra else None for row in rows.values()],
        ]
        arrays = [pa.array(each, kind.type) for each, kind in zip(columns, _SCHEMA, strict=True)]
        if rows:
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA))
        self._ends[str(number)] = asdict(end)

    def close(self) -> None:
        """Write the end of the file."""
        self._writer.add_key_value_metadata(
            {_HEAD: to_json(self._head.document()), _ENDS: to_json(self._ends)}
        )
        self._writer.close()


@contextmanager
def writing(file: Any, head: FileHead, kind: str) -> Iterator[StateWriter]:
    """Write an export to a binary file, as ``jsonl`` or ``parquet``."""
    if kind == "jsonl":
        yield _Lines(file, head)
        return
    parquet = _Parquet(file, head)
    yield parquet
    parquet.close()


@dataclass(slots=True)
class StateFile:
    """An export. ``ends`` has every partition once :meth:`rows` was read to its end."""

    path: Path
    head: FileHead
    ends: dict[int, PartitionEnd] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> StateFile:
        """Read the head.

        Raises:
            UsageError: it cannot be read, or is no export.
        """
        try:
            with path.open("rb") as file:
                is_parquet = file.read(len(_PARQUET)) == _PARQUET
                if not is_parquet:
                    file.seek(0)
                    return cls(path, FileHead.of(_parsed(file.readline(), path, 1), path))
            metadata = pq.read_metadata(path).metadata or {}
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
        except pa.ArrowInvalid as error:
            raise UsageError(f"{path} is no whole Parquet file: {error}") from error
        head = FileHead.of(json.loads(metadata.get(_HEAD, b"null")), path)
        ends = json.loads(metadata.get(_ENDS, b"{}"))
        return cls(path, head, {int(number): PartitionEnd(**end) for number, end in ends.items()})

    def rows(self) -> Iterator[tuple[int, bytes, KeyRow]]:
        """Yield partition, key and row, partition after partition.

        Raises:
            UsageError: a line cannot be used, or something is missing.
        """
        counts: dict[int, int] = {}
        last = 0
        found = self._table_rows() if self.ends and not self._is_lines() else self._line_rows()
        for number, key, row in found:
            if not last <= number < self.head.partitions:
                raise UsageError(
                    f"{self.path}: a row of partition {number} comes after those of {last}, or "
                    f"is none of {self.head.partitions} partitions; take a file as export wrote it"
                )
            last = number
            counts[number] = counts.get(number, 0) + 1
            yield number, key, row
        for number in range(self.head.partitions):
            end = self.ends.get(number)
            if end is None or end.rows != counts.get(number, 0):
                wanted = "its end" if end is None else f"{end.rows} rows"
                raise UsageError(
                    f"{self.path} is not whole: partition {number} has "
                    f"{counts.get(number, 0)} rows and not {wanted}; export again"
                )

    def _is_lines(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(len(_PARQUET)) != _PARQUET

    def _table_rows(self) -> Iterator[tuple[int, bytes, KeyRow]]:
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches():
                columns = (batch.column(name).to_pylist() for name in _SCHEMA.names)
                for number, key, state, timers in zip(*columns, strict=True):
                    yield number, key, _row(state, timers.encode() if timers else None)

    def _line_rows(self) -> Iterator[tuple[int, bytes, KeyRow]]:
        with self.path.open("rb") as file:
            for count, line in enumerate(file, 1):
                if count == 1:
                    continue
                document = _parsed(line, self.path, count)
                try:
                    number = document["partition"]
                    if "end" in document:
                        self.ends[number] = PartitionEnd(**document["end"])
                        continue
                    yield number, *_of_line(document)
                except (KeyError, TypeError, ValueError) as error:
                    raise UsageError(
                        f"{self.path}:{count} is no row of an export: {error!r}"
                    ) from error


def _of_line(document: dict[str, Any]) -> tuple[bytes, KeyRow]:
    key = document["key"].encode() if "key" in document else bytes.fromhex(document["key_hex"])
    if "state_base64" in document:
        state: bytes | None = b64decode(document["state_base64"], validate=True)
    else:
        state = to_json(document["state"]) if "state" in document else None
    return key, _row(state, to_json(document["timers"]) if "timers" in document else None)


def _row(state: bytes | None, extra: bytes | None) -> KeyRow:
    """Return a row; what is said beside a state has to be readable."""
    if state is None and extra is None:
        raise ValueError("it has neither a state nor timers")
    row = KeyRow.read(state or b"", extra)
    row.read_extra()
    return row


def _parsed(line: bytes, path: Path, count: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UsageError(f"{path}:{count} is no JSON: {error}") from error


def written_to(path: Path, error: OSError) -> HeadraceError:
    """Return the error of a file that cannot be written."""
    return HeadraceError(f"{path} cannot be written: {error.strerror or error}; choose another")
