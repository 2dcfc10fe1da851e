"""Arrow tables and ranges of offsets as DataFrames of Spark.

By value an Arrow table becomes a DataFrame with one partition for each chunk. This is what
``createDataFrame`` does, less what is known beforehand: it asks the JVM for five settings, looks
its functions up by reflection, compares and casts schemas, and fails on sliced chunks that hold
lists. The calls are pyspark's own and private, which is why the pyspark line is pinned.
"""

from __future__ import annotations

import json
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.core.errors import StartError
from headrace.core.record_runs import OffsetRun
from headrace.core.records import TopicPartition, offset_of
from headrace.core.tables import SCHEMA, merge, table_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.core.records import Batch
    from headrace.extensions.spark.settings import Share


_SCHEMA_JSON = from_arrow_schema(SCHEMA).json()


class ArrowToSpark:
    """Hands tables to one session, on the thread that owns it."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        context: Any = session.sparkContext
        utils = context._jvm.PythonSQLUtils  # noqa: SLF001
        self._send = context._serialize_to_jvm  # noqa: SLF001
        self._read_file = utils.readArrowStreamFromFile
        self._read_socket = context._jvm.ArrowIteratorServer  # noqa: SLF001
        self._to_frame = utils.toDataFrame

    def nothing(self) -> DataFrame:
        """Return a DataFrame with the columns of every table and no rows."""
        return self.session.createDataFrame([], from_arrow_schema(SCHEMA))

    def data_frame(self, table: pa.Table) -> DataFrame:
        """Return the table as a DataFrame. Blocks while the JVM reads it, some ms for 10 MB."""
        batches = self._send(
            table.to_batches(), ArrowStreamSerializer(), self._read_file, self._read_socket
        )
        java_session: Any = self.session._jsparkSession  # noqa: SLF001
        return DataFrame(self._to_frame(batches, _SCHEMA_JSON, java_session), self.session)


#: Seconds that an executor waits for records that are known to be there; Spark's own is 120.
_POLL_TIMEOUT = 30

#: How many records Kafka's own consumer takes at once by default.
_LEAST_AT_ONCE = 500

#: A record without a time has -1 ms in Spark's source, and null by value.
_TIMESTAMP = "if(timestamp < timestamp_millis(0), null, timestamp) as timestamp"
_COLUMNS = [_TIMESTAMP if name == "timestamp" else name for name in SCHEMA.names]


def reading(records: int) -> dict[str, str]:
    """Return how Spark's source is to read ranges of so many records, known to be there.

    Each time it has taken records from its consumer it asks the broker for both ends of the
    partition: with Kafka's own 500 records at once that is two more requests for 500 records, and
    after a fetch at the end of the log, which the broker keeps back for 500 ms by default, they
    wait for that. But what it has taken beyond the range it keeps as objects for five minutes, of
    any number of partitions: an executor of 512 MB did nothing but collect garbage after 250 had
    left a fetch of 1 MiB each. So it takes a whole range, and no more.
    """
    at_once = max(_LEAST_AT_ONCE, records)
    return {"kafka.max.poll.records": str(at_once), "kafka.fetch.max.wait.ms": "10"}


#: The first offset, and the one after the last, of offsets without a gap.
Stretch: TypeAlias = "tuple[int, int]"


class SparkInput(Protocol):
    """One way of records into Spark."""

    def check(self, to_spark: ArrowToSpark) -> None:
        """Find out whether this session can be given records so. Blocks.

        Raises:
            StartError: it cannot.
        """
        ...

    def prepare(self, batch: Batch) -> Any:
        """Prepare a batch as far as possible without Spark. Any thread."""
        ...

    def tables(self, prepared: Sequence[Any]) -> Sequence[pa.Table] | None:
        """Return the records of each prepared batch, None where only Spark will have them."""
        ...

    def frame(self, to_spark: ArrowToSpark, prepared: Sequence[Any], share: Share) -> DataFrame:
        """Return the records of prepared batches, with the columns of Spark's Kafka source.

        On the lane's thread. As many tasks as ``share`` has do the work, where there is enough, and
        more only if that is no limit.
        """
        ...


class ByValue:
    """The channel fetched the records; they are handed over as Arrow columns."""

    def check(self, to_spark: ArrowToSpark) -> None:
        """Return at once: every session can."""

    def prepare(self, batch: Batch) -> pa.Table:
        """Turn the records into columns."""
        return table_of(batch)

    def tables(self, prepared: Sequence[pa.Table]) -> Sequence[pa.Table]:
        """Return what was handed over."""
        return prepared

    def frame(
        self, to_spark: ArrowToSpark, prepared: Sequence[pa.Table], share: Share
    ) -> DataFrame:
        """Create a DataFrame of the columns."""
        return to_spark.data_frame(merge(prepared, share.tasks))


class ByReference:
    """The channel planned ranges; Spark's Kafka source reads them on the executors.

    ``properties`` are those of a Java client. ``group`` is the channel's: the source's consumers
    carry a name of their own after it, always the same, because Spark keeps them by that name.
    They are assigned their partitions, and neither join the group nor commit. ``records`` is how
    many a batch has at the most.
    """

    def __init__(self, properties: Mapping[str, str], group: str, records: int) -> None:
        self._options = {
            "kafka.isolation.level": "read_committed",
            **reading(records),
            **{f"kafka.{name}": value for name, value in properties.items()},
            "kafka.group.id": f"{group}-spark",
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "kafkaConsumer.pollTimeoutMs": str(_POLL_TIMEOUT * 1000),
        }

    def check(self, to_spark: ArrowToSpark) -> None:
        """Check that Spark finds its Kafka connector; no broker is asked."""
        try:
            self._read(to_spark, {TopicPartition("nothing", 0): [(0, 0)]}, 1)
        except PySparkException as error:
            reason = str(error).strip().partition("\n")[0]
            raise StartError(
                f"Spark cannot read from Kafka: {reason}; correct spark.connector"
            ) from error

    def prepare(self, batch: Batch) -> Batch:
        """Leave the batch as it is."""
        return batch

    def tables(self, prepared: Sequence[Batch]) -> None:
        """Return nothing: executors read the records."""

    def frame(self, to_spark: ArrowToSpark, prepared: Sequence[Batch], share: Share) -> DataFrame:
        """Create a DataFrame that reads the ranges when the job runs."""
        stretches = stretches_of(prepared)
        frame = self._read(to_spark, stretches, share.tasks).selectExpr(*_COLUMNS)
        if share.is_limit:
            # each partition is a task of its own
            frame = frame.coalesce(share.tasks)
        wanted = _wanted_condition(stretches)
        return frame if wanted is None else frame.where(wanted)

    def _read(
        self,
        to_spark: ArrowToSpark,
        stretches: Mapping[TopicPartition, Sequence[Stretch]],
        cores: int,
    ) -> DataFrame:
        parts: dict[str, list[int]] = {}
        for topic, partition in stretches:
            parts.setdefault(topic, []).append(partition)
        reader = to_spark.session.read.format("kafka").options(
            **self._options,
            assign=json.dumps(parts),
            startingOffsets=_offsets({at: found[0][0] for at, found in stretches.items()}),
            endingOffsets=_offsets({at: found[-1][1] for at, found in stretches.items()}),
            minPartitions=str(cores),
        )
        return reader.load()


def stretches_of(batches: Sequence[Batch]) -> dict[TopicPartition, list[Stretch]]:
    """Return which offsets to read, in order: neither what was lost before them nor what an
    operator left out among them.
    """
    found: dict[TopicPartition, list[Stretch]] = {}
    for batch in batches:
        stretches = found.setdefault(batch.partition, [])
        for start, end in _stretches(batch):
            if stretches and stretches[-1][1] == start:
                start, _ = stretches.pop()  # noqa: PLW2901 - the two are one
            stretches.append((start, end))
    return found


def _stretches(batch: Batch) -> list[Stretch]:
    records = batch.records
    if isinstance(records, OffsetRun):
        return [(records.start, records.next_offset)]
    found = []
    offsets = map(offset_of, records)
    # what lies without a gap has the same difference to its place
    for _, group in groupby(enumerate(offsets), lambda at: at[1] - at[0]):
        run = [offset for _, offset in group]
        found.append((run[0], run[-1] + 1))
    return found


def _offsets(positions: Mapping[TopicPartition, int]) -> str:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in positions.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(found)


def _wanted_condition(stretches: Mapping[TopicPartition, Sequence[Stretch]]) -> str | None:
    """Return the condition that keeps out what lies between stretches, None where nothing does."""
    conditions = []
    for (topic, partition), found in stretches.items():
        gaps = [(one[1], other[0]) for one, other in pairwise(found)]
        conditions += [
            f"not (topic = '{topic}' and partition = {partition} "
            f"and offset >= {start} and offset < {end})"
            for start, end in gaps
        ]
    return " and ".join(conditions) or None
