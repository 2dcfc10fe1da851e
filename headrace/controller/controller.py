"""KafkaController: the ZooKeeper session, the Spark session and all channels of one process."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

import structlog

from headrace.channel.channel import InboundKafkaChannel
from headrace.channel.offset_stores import open_offset_store, transactional_prefix
from headrace.channel.pauses import PauseFile
from headrace.channel.runtime import ChannelPorts
from headrace.channel.skips import Skips
from headrace.channel.states import StopReport
from headrace.config.derived import rekeying_of
from headrace.controller.code import CodeBook
from headrace.controller.engine_session import open_session
from headrace.coordinators.begun_topics import BegunTopics
from headrace.coordinators.coordinator import build_coordinator
from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
from headrace.core.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.core.errors import ConfigError, FatalError, StartError
from headrace.core.imports import load_own
from headrace.core.spans import NO_TRACER
from headrace.core.user_text import describe_error
from headrace.kafka import KafkaRangeSource, KafkaRecordSource, KafkaTopicCatalog
from headrace.kafka.clients import PREFETCH_SHARE, client_properties
from headrace.kafka.dead_letters import KafkaDeadLetterStore
from headrace.kafka.errors import LibraryMissingError
from headrace.kafka.source import KafkaRecordReader
from headrace.kafka.transaction_log import holder_of
from headrace.processors.factory import build_processor
from headrace.telemetry.metrics import Metrics
from headrace.zookeeper.identity import Identity
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import session_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headrace.channel.bounds import Until
    from headrace.channel.pauses import Pause
    from headrace.config import ChannelConfig, Config, KafkaConfig, ZooKeeperConfig
    from headrace.controller.engine_session import EngineSession, SparkSnapshot
    from headrace.coordinators.coordinator import Coordinator
    from headrace.coordinators.rebalance import Listener
    from headrace.core.spans import Tracer
    from headrace.core.supervision import Heartbeat
    from headrace.kafka.columnar import ColumnarRecordSource
    from headrace.kafka.ports import RecordSource
    from headrace.processors import BatchProcessor
    from headrace.telemetry.metrics import PartitionSnapshot


log = structlog.get_logger(__name__)


#: Returns what records traces, or NO_TRACER where the configuration asks for none.
TRACER = "headrace.extensions.otel.tracing:open_tracer"


@dataclass(frozen=True, slots=True)
class ProcessResources:
    """The resources that the channels of a process share. ``directory`` is the process's own.

    ``admin_url`` is where other machines reach its API, None where they do not.
    """

    member: str
    kafka: KafkaConfig
    session: ZooKeeperSession
    directory: Path
    clock: Clock
    tracer: Tracer
    admin_url: str | None = None

    def ports(self, name: str, channel: ChannelConfig, *, in_columns: bool) -> ChannelPorts:
        """Build the adapters of a channel; nothing is sent.

        ``in_columns``: its processor wants records in columns.
        """
        kafka = client_properties(self.kafka)
        prefetch = 0 if channel.by_reference else int(channel.buffer.max_bytes * PREFETCH_SHARE)
        registry = ZooKeeperRegistry(
            self.session,
            channel.group,
            self.member,
            transactional_prefix=transactional_prefix(channel, self.member),
            clock=self.clock,
            admin_url=self.admin_url,
        )

        def coordinator(listener: Listener) -> Coordinator:
            return build_coordinator(channel, registry, listener, self.clock)

        return ChannelPorts(
            source=self._source(name, channel, kafka, prefetch, in_columns=in_columns),
            store=open_offset_store(channel, kafka, self.session, self.clock),
            catalog=KafkaTopicCatalog(kafka, channel.group),
            coordinator=coordinator,
            begun=BegunTopics(self.session, channel.group),
            holder=partial(holder_of, kafka),
            prefetch=prefetch,
            pauses=PauseFile(self.directory / f"pauses-{name}.json"),
            tracer=self.tracer,
            dead_letters=KafkaDeadLetterStore(kafka),
            reader=KafkaRecordReader(kafka, channel.group),
        )

    def _source(
        self,
        name: str,
        channel: ChannelConfig,
        kafka: Mapping[str, Any],
        prefetch: int,
        *,
        in_columns: bool,
    ) -> RecordSource:
        if channel.by_reference:
            return KafkaRangeSource(kafka, channel.group, self.clock)
        source = columns_of(name, channel.group, kafka, prefetch) if in_columns else None
        return source or KafkaRecordSource(kafka, channel.group, prefetch)


def columns_of(
    name: str, group: str, kafka: Mapping[str, Any], prefetch: int
) -> ColumnarRecordSource | None:
    """Return what fetches records in columns; None, and a line in the log, where nothing can."""
    from headrace.core.columns import load_pandas  # noqa: PLC0415 - others need no pyarrow
    from headrace.kafka.columnar import ColumnarRecordSource  # noqa: PLC0415 - others need no pyarrow

    try:
        return ColumnarRecordSource(kafka, group, prefetch)
    except LibraryMissingError as missing:
        log.info("columnar_fetch_unavailable", channel=name, reason=str(missing))
        load_pandas()
        return None


#: Seconds that ZooKeeper's session and Spark have at the end of a stop, out of its deadline.
CLOSE_SHARE = 0.2


class KafkaController:
    """Owns what the channels of a process share, and the channels.

    ``processors`` replaces, by channel name, the processor that the configuration names: the way
    to run processors that exist as objects. ``until`` bounds the run of every channel. ``config``
    is what runs. ``start``, ``wait``, ``finished`` and ``stop`` are for one thread; between start
    and stop, what changes channels is for another one, the ``Reloader``'s.
    """

    def __init__(
        self,
        config: Config,
        *,
        processors: Mapping[str, BatchProcessor] | None = None,
        metrics: Metrics | None = None,
        clock: Clock = SYSTEM_CLOCK,
        until: Until | None = None,
    ) -> None:
        self.config = config
        self.metrics = metrics or Metrics()
        self.channels: dict[str, InboundKafkaChannel] = {}
        self.code = CodeBook()
        #: Where other machines reach the process's API, for channels that start from then on.
        self.admin_url: str | None = None
        self._processors = dict(processors or {})
        self._clock = clock
        self._until = until
        self._skips: dict[str, Skips] = {}
        self._finished: set[str] = set()
        self._identity = Identity(Path(config.state_dir), config.instance_id)
        self.session = ZooKeeperSession(session_settings(config.zookeeper), self._identity)
        self._spark: EngineSession | None = None
        self._tracer = NO_TRACER
        # a SimpleQueue's wait has no end where a signal's handler runs past its time-out
        self._failures: Queue[BaseException] = Queue()
        self._report: StopReport | None = None

    def take_name(self) -> None:
        """Lock the ``instance_id``, ahead of what ``start`` does; ``stop`` gives it up.

        Raises:
            StartError: another process has it.
        """
        self._identity.acquire()

    def start(
        self, deadline: Deadline, *, before_clean_up: Callable[[], None] = lambda: None
    ) -> None:
        """Load the processors, connect, and start every enabled channel. Blocks.

        No channel joins its group before all are prepared. ``deadline`` is for the brokers, again
        for each channel: ZooKeeper has its ``connect_timeout``, Spark its ``start_timeout``.
        ``before_clean_up`` is called when the start has failed, before what had started is stopped.

        Raises:
            ConfigError: something named in the configuration cannot be used.
            StartError: something cannot be reached or imported. Nothing was claimed, and what had
                been opened is closed.
        """
        patience = deadline.remaining
        sys.path[:0] = [f for f in map(str, self.config.python_path) if f not in sys.path]
        enabled = {name: c for name, c in self.config.channels.items() if c.enabled}
        processors = {name: self.processor(name, channel) for name, channel in enabled.items()}
        self._tracer = load_own(TRACER)(
            self.config.tracing,
            self.config.instance_id,
            self.metrics.telemetry_dropped.labels("traces").inc,
        )
        self._identity.acquire()
        try:
            self.session.start()
            for name, channel in enabled.items():
                with self._opening(name):
                    prepared = self._admit(name, channel, processors[name])
                    prepared.prepare(Deadline.after(patience, self._clock))
            for name, prepared in tuple(self.channels.items()):
                with self._opening(name):
                    prepared.start(deadline)
        except BaseException:
            before_clean_up()
            self.stop(Deadline.after(self.config.shutdown_timeout, self._clock))
            raise
        log.info("controller_started", channels=sorted(enabled), member=self.config.instance_id)

    def fail(self, error: BaseException) -> None:
        """Make ``wait`` return this error. Any thread."""
        self._failures.put(error)

    def wait(self, timeout: float) -> BaseException | None:
        """Return why a channel failed; None if none does within ``timeout`` seconds."""
        try:
            return self._failures.get(timeout=timeout)
        except Empty:
            return None

    def partitions(self) -> list[PartitionSnapshot]:
        """Return where the partitions of all channels stand. Any thread."""
        return [each for channel in tuple(self.channels.values()) for each in channel.partitions()]

    def claims(self) -> set[tuple[int, str, int, int]]:
        """Return what tells the claims held from all others, also of channels replaced. Any thread.

        That is the channel, by its object, the topic, the partition and the epoch.
        """
        return {
            (id(channel), each.topic, each.partition, each.epoch)
            for channel in tuple(self.channels.values())
            for each in channel.partitions()
        }

    def spark(self) -> SparkSnapshot | None:
        """Return a snapshot of Spark, None if no channel uses it. Any thread; does not block."""
        return None if self._spark is None else self._spark.snapshot()

    def heartbeats(self) -> list[Heartbeat]:
        """Return the parts of all channels that send heartbeats. Any thread."""
        return [each for channel in tuple(self.channels.values()) for each in channel.heartbeats()]

    # --- changing what runs -----------------------------------------------------------------

    def adopt(self, config: Config) -> None:
        """Set the configuration that counts as running; it changes nothing by itself."""
        self.config = config

    def reached_at(self, admin_url: str | None) -> None:
        """Set the API's address that channels publish which start from now on."""
        self.admin_url = admin_url

    def processor(
        self, name: str, channel: ChannelConfig, desired: Config | None = None
    ) -> BatchProcessor:
        """Build a channel's processor, which imports what it names. Blocks.

        ``desired`` has the sections that its clients use, by default it is what runs.

        Raises:
            StartError: code that it names cannot be imported or has a wrong shape.
            ConfigError: the sink's path cannot be used.
        """
        given = self._processors.get(name)
        if given is not None:
            return given
        built = build_processor(
            channel,
            self._spark_session,
            self.config.instance_id,
            (desired or self.config).kafka,
            self._identity.directory / "keyed" / name,
            registry=(desired or self.config).registry,
        )
        self.code.note(name, channel)
        return built

    def open(
        self,
        name: str,
        channel: ChannelConfig,
        processor: BatchProcessor,
        deadline: Deadline,
        pauses: Iterable[Pause] = (),
    ) -> None:
        """Build and start a channel, with the pauses of one before it. Blocks.

        ``deadline`` is for the brokers, as in ``start``.

        Raises:
            StartError: it could not be started, and is gone again.
        """
        with self._opening(name):
            self._admit(name, channel, processor, pauses).start(deadline)

    def _admit(
        self,
        name: str,
        channel: ChannelConfig,
        processor: BatchProcessor,
        pauses: Iterable[Pause] = (),
    ) -> InboundKafkaChannel:
        """Build a channel, which is one of the process's from then on."""
        admitted = self._build(name, channel, processor)
        admitted.take_over(pauses)
        self.channels[name] = admitted
        return admitted

    @contextmanager
    def _opening(self, name: str) -> Iterator[None]:
        """Drop the channel if it fails in the block, with a StartError that names it."""
        try:
            yield
        except Exception as error:
            self.channels.pop(name, None)
            if isinstance(error, (StartError, ConfigError, FatalError)):
                raise
            # what a processor or a sink raises is theirs, and must not leave a reload half done
            raise StartError(
                f"channel {name} cannot be started: {describe_error(error)}"
            ) from error

    def close(self, name: str, deadline: Deadline) -> StopReport:
        """Stop a channel and forget it; nothing where there is none. Blocks until the deadline."""
        channel = self.channels.get(name)
        if channel is None:
            return StopReport(())
        report = channel.stop(deadline)
        self.channels.pop(name, None)
        self.metrics.forget_channel(name)
        return report

    def close_all(self, deadline: Deadline) -> StopReport:
        """Stop all channels at the same time, and forget them. Blocks until the deadline."""
        left = self._stop_channels(deadline, deadline)
        for name in tuple(self.channels):
            del self.channels[name]
            self.metrics.forget_channel(name)
        return StopReport(tuple(left))

    def replace_session(self, zookeeper: ZooKeeperConfig, deadline: Deadline) -> None:
        """End the ZooKeeper session and begin another one, while no channel runs. Blocks.

        Raises:
            StartError: there is no session now.
        """
        self.session.close(deadline)
        self.session = ZooKeeperSession(session_settings(zookeeper), self._identity)
        self.session.start()

    def replace_spark(self, settings: Any, deadline: Deadline) -> bool:
        """Rebuild Spark's session, if there is one. Blocks.

        Returns:
            False if a micro-batch did not end by the deadline: the session is the former one.

        Raises:
            StartError: there is none with these settings, and the former one goes on.
        """
        return self._spark is None or self._spark.replace(settings, deadline)

    def begin_stop(self) -> None:
        """Stop building what the stop would have to wait for. Does not block.

        Any thread; ahead of ``stop``, while a change may still be under way.
        """
        if self._spark is not None:
            self._spark.retire()

    @property
    def is_bounded(self) -> bool:
        """Return whether the run ends by itself; it keeps the configuration that it began with."""
        return self._until is not None

    def _until_of(self, name: str) -> Until | None:
        """Return up to where a channel reads: what is read by key, after that is written."""
        if self._until is None:
            return None
        return replace(self._until, after=rekeying_of(name, self.config.channels))

    def finished(self, deadline: Deadline) -> bool:
        """Return whether a bounded run is over for every channel. Blocks until the deadline at
        most.
        """
        for name, channel in tuple(self.channels.items()):
            until = self._until_of(name)
            if name in self._finished or until is None or self._waits_for_others(until):
                continue
            if channel.reached_bounds(deadline):
                self._finished.add(name)
        return self._until is not None and self._finished >= self.channels.keys()

    def _waits_for_others(self, until: Until) -> bool:
        return not self._finished.issuperset(self.channels.keys() & set(until.after.values()))

    def stop(self, deadline: Deadline) -> StopReport:
        """Stop every channel, end the ZooKeeper session and Spark. Blocks until the deadline.

        The report names what was not finished. A second call returns the first one's report.
        """
        if self._report is None:
            self._report = self._stop(deadline)
        return self._report

    def _stop(self, deadline: Deadline) -> StopReport:
        self.begin_stop()
        reserve = deadline.remaining * CLOSE_SHARE
        left = self._stop_channels(
            Deadline(deadline.at - reserve, self._clock),
            Deadline(deadline.at - reserve * 3 / 4, self._clock),
        )
        # first what keeps partitions from others
        self.session.close(deadline)
        if self.session.lingers:
            left.append("the ZooKeeper session: no server was told, so it has to expire")
        if self._spark is not None:
            self._spark.stop(deadline)
        self._tracer.close(deadline)
        self._identity.release()
        log.info("controller_stopped", unfinished=left)
        return StopReport(tuple(left))

    def _stop_channels(self, deadline: Deadline, report_by: Deadline) -> list[str]:
        """Stop all channels at the same time, so that one that hangs costs no other its time.

        One with a hung worker uses its ``deadline`` up, and says what it left just after that.
        """
        reports: dict[str, StopReport] = {}
        channels = dict(self.channels)

        def stop(channel: InboundKafkaChannel) -> None:
            reports[channel.name] = channel.stop(deadline)

        threads = [
            Thread(target=stop, args=[channel], name=f"{name}-stop", daemon=True)
            for name, channel in channels.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(report_by.remaining)
        unstopped = StopReport(("the channel did not stop in time",))
        return [
            f"{name}: {thing}" for name in channels for thing in reports.get(name, unstopped).left
        ]

    def _spark_session(self) -> EngineSession:
        if self._spark is None:
            self._spark = open_session(self.config)
        return self._spark

    def skips(self, name: str) -> Skips:
        """Return what channels of this name, one after the other, are to leave out."""
        return self._skips.setdefault(name, Skips(self.metrics, name))

    def _build(
        self, name: str, channel: ChannelConfig, processor: BatchProcessor
    ) -> InboundKafkaChannel:
        resources = ProcessResources(
            self.config.instance_id,
            self.config.kafka,
            self.session,
            self._identity.directory,
            self._clock,
            self._tracer,
            self.admin_url,
        )
        return InboundKafkaChannel(
            name,
            channel,
            processor,
            resources.ports(name, channel, in_columns=processor.in_columns),
            metrics=self.metrics,
            clock=self._clock,
            on_failure=lambda _, error: self.fail(error),
            until=self._until_of(name),
            skips=self.skips(name),
        )
