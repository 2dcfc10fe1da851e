"""The settings of Spark that suit small batch jobs, under those of the user.

The reasons and measurements are in docs/spark.md; the times below are of a count by key on two
cores, as measured before and after the one change.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config.types.addresses import MAVEN, is_coordinate
from headrace.core.errors import ConfigError
from headrace.core.memory import ARENAS
from headrace.kafka.java_client import java_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace import config


@dataclass(frozen=True, slots=True)
class Share:
    """The tasks that a job may have at once; with ``is_limit`` any more are others' to have."""

    tasks: int
    is_limit: bool = False


def slots_for(cores: int, channels: int) -> int:
    """Return how many slots a session has: more than cores where there are several channels.

    Beside a job that hangs with as many tasks as there are cores the others have as many slots
    again, and each at least one, however many hang. Tasks that wait for nothing share the cores.
    """
    return cores if channels <= 1 else 2 * cores + channels - 2


class Slots:
    """Says how many tasks a lane's next job may have. Any thread; does not block.

    A task that hangs keeps its slot, and Spark takes none away. So a job may have as many tasks as
    there are cores, but no more than its part if several lanes are busy, and it leaves each lane
    that is idle one slot. That holds for as many lanes as there are slots.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cores = 1
        self._count: int | None = None
        self._taken: dict[object, int] = {}

    def resize(self, cores: int, count: int | None) -> None:
        """Share out the ``count`` slots of another session, None where they cannot be counted."""
        with self._lock:
            self._cores, self._count = cores, count

    def enter(self, lane: object) -> None:
        """Leave a slot to this lane from now on."""
        with self._lock:
            self._taken[lane] = 0

    def leave(self, lane: object) -> None:
        """Leave it none any more."""
        with self._lock:
            self._taken.pop(lane, None)

    @contextmanager
    def share(self, lane: object) -> Iterator[Share]:
        """Reserve the share of the lane's job for the time of the block."""
        with self._lock:
            share = self._share_of(lane)
            if lane in self._taken:
                self._taken[lane] = share.tasks
        try:
            yield share
        finally:
            with self._lock:
                if lane in self._taken:
                    self._taken[lane] = 0

    def _share_of(self, lane: object) -> Share:
        others = [tasks for other, tasks in self._taken.items() if other != lane]
        if self._count is None or not others:
            return Share(self._cores)
        idle = others.count(0)
        even = -(-self._count // (1 + len(others) - idle))
        free = self._count - sum(others) - idle
        return Share(max(1, min(self._cores, even, free)), is_limit=True)


#: What the connector depends on and Spark brings itself: 54 MB that need not be fetched again.
_SPARKS_OWN = (
    "com.google.code.findbugs:jsr305",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.lz4:lz4-java",
    "org.scala-lang.modules:scala-parallel-collections_2.13",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
)
#: Spark's default less kafka: the newer of the two readers in the connector makes no objects of
#: rows on the way, which takes a tenth to a quarter off a micro-batch.
_OLD_READERS = {"spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text"}
_PACKAGES, _EXCLUDES, _JARS = "spark.jars.packages", "spark.jars.excludes", "spark.jars"


def default_coordinate() -> str:
    """Return the connector that fits the pyspark installed: the first release of its line."""
    import pyspark  # noqa: PLC0415 - the settings of a process without Spark are looked at too

    major, minor, *_ = pyspark.__version__.split(".")
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{major}.{minor}.0"


def connector_properties(connector: str | None, properties: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's properties for what ``spark.connector`` says, beside those of the user.

    Raises:
        ConfigError: a folder without the connector in it.
    """
    if connector is None:
        return {}
    found = {name: value for name, value in _OLD_READERS.items() if name not in properties}
    if connector == MAVEN or is_coordinate(connector):
        coordinate = default_coordinate() if connector == MAVEN else connector
        return {
            **found,
            _PACKAGES: _join_texts(properties.get(_PACKAGES), [coordinate]),
            _EXCLUDES: _join_texts(properties.get(_EXCLUDES), _SPARKS_OWN),
        }
    return {**found, _JARS: _join_texts(properties.get(_JARS), _jars_in(Path(connector)))}


def _join_texts(theirs: str | None, ours: list[str] | tuple[str, ...]) -> str:
    return ",".join([*([theirs] if theirs else []), *ours])


def _jars_in(folder: Path) -> list[str]:
    jars = sorted(folder.glob("*.jar"))
    if not any("spark-sql-kafka" in jar.name for jar in jars):
        problem = (
            f"spark.connector: {folder} has no jar of Spark's Kafka connector; fill it with: "
            f"headrace connector fetch {folder}"
        )
        raise ConfigError([problem])
    return [str(jar) for jar in jars]


_LOCAL = re.compile(r"local(?:\[(\*|\d+)(,\s*\d+)?\])?$")
_LOG4J = Path(__file__).with_name("log4j2.properties")

#: The folder of the module that forks Python workers, and its name there.
_WORKERS = Path(__file__).with_name("workers")
_WORKER_DAEMON = "headrace_worker_daemon"
_WORKER_PATH = "spark.executorEnv.PYTHONPATH"

#: Dummy micro-batches before a session counts as ready. The first takes 3 to 6 s, the eleventh
#: 0.36 s, the fiftieth 0.16 s: the JVM compiles what runs often.
WARM_UP = 50

#: Seconds to wait for the JVM and the session; a loaded two-core machine took 26 s.
START_TIMEOUT = 120.0

#: How many times that a start may take that works all the time.
FAR = 3

#: For G1, the collector of a JVM on two cores and more; another one, of the user's choice, ignores
#: it. Chunks of records are arrays of some MB, which G1 counts as old from the beginning, so that
#: with a heap of 1 GiB it marked all the time. Counts by key of 100,000: 562,000 -> 784,000 records
#: a second.
_MARKING = "-XX:-G1UseAdaptiveIHOP -XX:InitiatingHeapOccupancyPercent=75 -XX:G1HeapRegionSize=8m"

#: Options for a JVM that lives for minutes, as in tests: compiling quickly rather than well, and
#: collecting on one core, halve the work of a start (17 to 9.5 s of processor time).
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_BASE = {
    "spark.app.name": "headrace",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Above this size a table is decoded by the executors instead of row by row in the driver,
    # where the optimizer would also evaluate the reducer's projections: 490 -> 203 ms at 100,000.
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    # Bounds the chunks that reach Python UDFs too; 0 is refused by pyarrow.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # Re-planning between stages costs more than it gains on a micro-batch: 157 -> 126 ms at 1,000.
    "spark.sql.adaptive.enabled": "false",
    # Makes the hand-over of timestamps free of conversion, and results alike on every host.
    "spark.sql.session.timeZone": "UTC",
    # A slot that becomes free goes to the lane that has the fewest; none is taken away.
    "spark.scheduler.mode": "FAIR",
    "spark.locality.wait": "0s",
    # A Python worker that a record made crash says so; one that the kernel killed cannot.
    "spark.python.worker.faulthandler.enabled": "true",
    # Records of finished jobs are kept for a UI that is off; these bound the driver's heap.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    # Shuffle files of finished plans are deleted when the JVM collects garbage.
    "spark.cleaner.periodicGC.interval": "5min",
    # What a task has taken from Kafka beyond its range an executor keeps for the next one, but that
    # may run on another: after 5 min, Spark's own, an executor with 250 partitions was full.
    "spark.kafka.consumer.fetchedData.cache.timeout": "30s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "10s",
    # The Delta protocol and every reader know microseconds; INT96 is Spark's own past.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Without Hadoop's native library each new directory and file costs a fork of chmod. This class
    # writes no checksum files beside the data, which halves them: a staged write of 100 rows
    # 115 -> 85 ms.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Staged files: no marker file to delete again.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings with which Spark is started.

    ``properties`` are Spark's own and win over the recommended ones. ``warm_up`` counts dummy
    micro-batches, ``start_timeout`` is in seconds, ``log_level`` is a log4j level for the JVM.
    ``channels`` is how many the session is for: with several a local master has more slots than it
    has cores, so that one's tasks that hang leave slots to the others.
    """

    master: str = "local[*]"
    properties: Mapping[str, str] = field(default_factory=dict)
    warm_up: int = WARM_UP
    start_timeout: float = START_TIMEOUT
    log_level: str = "ERROR"
    channels: int = 1

    @property
    def is_local(self) -> bool:
        """Return whether driver and executors are one JVM on this host."""
        return _LOCAL.match(self.master) is not None

    @property
    def slots(self) -> int | None:
        """Return how many tasks a local master runs at once, None for a cluster."""
        cores = local_cores(self.master)
        return None if cores is None else slots_for(cores, self.channels)

    def effective(self) -> dict[str, str]:
        """Return all properties of the session: recommended, derived, then the user's."""
        options = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -Dheadrace.log={self.log_level}"
        # A JVM out of memory is of no use: it ends, is built again and the batch replayed.
        options += f" -XX:+ExitOnOutOfMemoryError {_MARKING}"
        derived = {"spark.master": self.master, "spark.driver.extraJavaOptions": options}
        cores = local_cores(self.master)
        if cores is not None:
            derived |= {
                "spark.driver.host": "127.0.0.1",
                # Loopback is open to every user of the machine, and Spark reads objects of Java
                # from any client. The secret is Spark's own: it never leaves the JVM.
                "spark.authenticate": "true",
                "spark.sql.shuffle.partitions": str(cores),
                "spark.python.daemon.module": _WORKER_DAEMON,
            }
            if self.slots != cores:
                derived |= {
                    "spark.master": _with_slots(self.master, self.slots),
                    "spark.default.parallelism": str(cores),
                }
        chosen = dict(self.properties)
        if cores is not None:
            theirs = [chosen[_WORKER_PATH]] if _WORKER_PATH in chosen else []
            chosen[_WORKER_PATH] = os.pathsep.join([str(_WORKERS), *theirs])
        own = chosen.pop("spark.driver.extraJavaOptions", "")
        merged = {**_BASE, **derived, **chosen}
        merged["spark.driver.extraJavaOptions"] = f"{options} {own}".strip()
        return merged

    def environment(self) -> dict[str, str]:
        """Return the environment variables Spark reads, where the environment sets none.

        Without ``PYSPARK_PYTHON`` the workers run the ``python3`` of the path, which lacks
        pyarrow as a rule; without ``SPARK_LOCAL_IP`` Spark looks the host's name up; with few
        arenas the JVM's threads leave less free memory in each (Hadoop limits its own likewise).
        """
        python = self.properties.get("spark.pyspark.python", sys.executable)
        wanted = {
            "PYSPARK_PYTHON": python,
            "PYSPARK_PIN_THREAD": "true",
            "MALLOC_ARENA_MAX": str(ARENAS),
        }
        if self.is_local:
            wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
        return {name: value for name, value in wanted.items() if name not in os.environ}


def short_lived(master: str) -> SparkSettings:
    """Return the settings of a session for tests: it starts soon, with hardly any warm-up."""
    return SparkSettings(master, {"spark.driver.extraJavaOptions": SHORT_LIVED}, warm_up=1)


def _with_slots(master: str, slots: int | None) -> str:
    """Return a local master with another number of slots, and its number of attempts."""
    match = _LOCAL.match(master)
    attempts = "" if match is None else match[2] or ""
    return f"local[{slots}{attempts}]"


def local_cores(master: str) -> int | None:
    """Return the cores that a local master names, None for a cluster."""
    match = _LOCAL.match(master)
    if match is None:
        return None
    count = match[1]
    if count == "*":
        return len(os.sched_getaffinity(0))
    return int(count or 1)


def spark_channels(desired: config.Config) -> int:
    """Return how many channels share a session."""
    return sum(channel.enabled and channel.on_spark for channel in desired.channels.values())


#: Of the driver and of executors: both read from Kafka by reference.
_JVM_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def settings_of(desired: config.Config) -> SparkSettings:
    """Return the settings of the session that the channels of a configuration share.

    Raises:
        ConfigError: ``spark.connector`` names a folder without the connector in it.
    """
    settings = spark_settings(desired.spark, spark_channels(desired))
    options = java_options(desired.kafka)
    if not options:
        return settings
    given = settings.properties
    both = {name: f"{options} {given.get(name, '')}".strip() for name in _JVM_OPTIONS}
    return replace(settings, properties={**given, **both})


def spark_settings(section: config.SparkConfig, channels: int = 1) -> SparkSettings:
    """Return the settings of the session that all channels share, so many.

    Raises:
        ConfigError: ``connector`` names a folder without the connector in it.
    """
    properties = {name: _text(value) for name, value in section.session_properties().items()}
    properties |= connector_properties(section.connector, properties)
    properties["spark.app.name"] = section.app_name
    properties["spark.driver.memory"] = f"{section.driver_memory >> 20}m"
    return SparkSettings(
        section.master,
        properties,
        section.warm_up,
        start_timeout=section.start_timeout,
        channels=channels,
    )


def _text(value: object) -> str:
    """Return a property as Spark writes it: booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)
