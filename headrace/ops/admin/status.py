"""The status of the process, its channels, partitions and threads, as the API answers it."""

from __future__ import annotations

import os
import platform
import socket
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.channel.states import PartitionState
from headrace.config import guarantee
from headrace.config.show import document
from headrace.coordinators.group_nodes import read_nodes
from headrace.coordinators.member_info import AssignmentMode
from headrace.core.stacks import thread_stacks
from headrace.ops.admin import configuration
from headrace.ops.admin import models as d
from headrace.ops.admin.document import Document, Number, moment
from headrace.ops.admin.health import not_ready
from headrace.ops.admin.history import INTERVAL, Events, EventStatus, History, Rates
from headrace.ops.admin.state import restore_status, standby_status, state_reader_of
from headrace.ops.admin.topologies import Topologies, topologies_of
from headrace.telemetry.logs import recent_events
from headrace.telemetry.metrics import Summary
from headrace.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.channel.pauses import Pause
    from headrace.channel.skips import Skip
    from headrace.core.clock import Clock
    from headrace.ops.admin.ports import Controller, Deployment, Process
    from headrace.ops.admin.rejects import Rejects
    from headrace.telemetry.logs import RecentEvent
    from headrace.telemetry.metrics import ChannelSummary, OperatorSnapshot, PartitionSnapshot

P = TypeVar("P", bound=d.PartitionStatus)


class PartitionActivity(d.PartitionStatus):
    """A held partition, with where its callback is."""

    channel: str
    """The channel."""
    calls: list[str]
    """The calls that the callback's thread is in, the outermost first."""


class Stacks(Document):
    """The calls that every thread and every held partition is in."""

    at: datetime
    """The time of this answer."""
    threads: dict[str, list[str]]
    """By thread the calls it is in, the outermost first."""
    partitions: list[PartitionActivity]
    """The partitions, channel by channel."""


class GroupMember(Document):
    """A member of a group, as its node in ZooKeeper says."""

    name: str
    """Its name."""
    this: bool
    """True if it is this process."""
    host: str | None
    """The machine it runs on."""
    pid: int | None
    """Its process id."""
    software: str | None
    """The version of what it runs."""
    since: datetime | None
    """The time at which it joined."""
    mode: AssignmentMode | None
    """Its way of choosing partitions."""
    draining: bool | None
    """True if it is giving all partitions back."""
    owned: Number
    """The number of partitions that it owns."""
    problem: str | None
    """The reason why its node cannot be read; null: it can."""


class Group(Document):
    """A channel's group."""

    channel: str
    """The channel."""
    group: str
    """The group."""
    members: list[GroupMember]
    """The members, by name."""
    owners: dict[str, str | None]
    """By partition (topic-number) its owner's name; null where its node cannot be read."""


class Members(Document):
    """The groups of all channels."""

    at: datetime
    """The time of this answer."""
    groups: list[Group]
    """The groups, by channel."""


class StatusBuilder:
    """The builder of status documents. Every method describes the moment at which it is called."""

    def __init__(
        self,
        controller: Controller,
        process: Process,
        deployment: Deployment | None,
        *,
        rates: Rates,
        rejects: Rejects,
        clock: Clock,
    ) -> None:
        self._controller = controller
        self._rejects = rejects
        self._deployment = deployment
        self._process = process
        self._rates = rates
        self._clock = clock
        self._started = clock.time()
        self._started_monotonic = clock.monotonic()

    def status(self) -> d.Status:
        """Return everything."""
        reasons = not_ready(self._controller, self._process)
        return d.Status(
            at=self._now(),
            process=self._process_status(),
            zookeeper=self._zookeeper(),
            spark=self._spark(),
            ready=not reasons,
            not_ready_because=reasons,
            config=self._config_summary(),
            channels=self._channels(),
        )

    def channels(self) -> d.Channels:
        """Return the channels."""
        return d.Channels(at=self._now(), channels=self._channels())

    def channel(self, channel: InboundKafkaChannel) -> d.ChannelStatus:
        """Return one channel."""
        return self._channel(channel, Summary(self._controller.metrics).channel(channel.name))

    def _channel(self, channel: InboundKafkaChannel, done: ChannelSummary) -> d.ChannelStatus:
        held, pauses = channel.partitions(), channel.pauses
        config, promise = channel.config, guarantee(channel.config)
        return d.ChannelStatus(
            name=channel.name,
            state=channel.state,
            failure=None if channel.failure is None else str(channel.failure),
            group=config.group,
            topics=channel.topics,
            processor=config.processor.type,
            sink=None if config.sink is None else config.sink.type,
            delivery=promise.delivery,
            member=_member(channel),
            paused=any(pause.partition is None for pause in pauses),
            pauses=[pause_status(pause) for pause in pauses],
            skips=[skip_status(skip) for skip in channel.skips],
            totals=self._totals(channel.name, held, done),
            rejects=self._rejects.of(channel.name),
            stages=self._rates.stages(channel.name, done),
            threads=[
                d.ThreadsStatus(role=role, parts=parts)
                for role, parts in self._rates.threads(channel.name, done).items()
            ],
            conditions=done.conditions,
            state_by_key=_state_by_key(channel),
            pool=_pool(channel),
            partitions=self._partitions(held, _restoring(channel)),
        )

    def partitions(self, channel: InboundKafkaChannel) -> d.Partitions:
        """Return the partitions of one channel."""
        return d.Partitions(
            at=self._now(),
            channel=channel.name,
            partitions=self._partitions(channel.partitions(), _restoring(channel)),
        )

    def history(self, after: datetime | None) -> History:
        """Return the recent figures of the channels."""
        since = 0.0 if after is None else after.timestamp()
        return History(interval_s=INTERVAL, channels=self._rates.history(since))

    def events(self, after: int) -> Events:
        """Return the recent log events."""
        return Events(
            at=self._now(),
            pid=os.getpid(),
            events=[_event(each) for each in recent_events(after)],
        )

    def members(self) -> Members:
        """Return the groups, as ZooKeeper has them. Blocks, each read for one time-out.

        Raises:
            HeadraceError: ZooKeeper did not answer.
        """
        found = [self._group(channel) for channel in self._sorted()]
        return Members(at=self._now(), groups=found)

    def topologies(self) -> Topologies:
        """Return the plans of the topologies whose channels run."""
        return topologies_of(self._sorted())

    def config(self) -> configuration.ConfigDocument:
        """Return the configuration, secrets masked."""
        applied = dict(document(self._controller.config))
        status = None if self._deployment is None else self._deployment.config_status()
        return configuration.ConfigDocument(
            file=str(self._process.file),
            applied=applied,
            desired=applied if status is None else dict(status.desired),
            summary=self._config_summary(),
        )

    def _config_summary(self) -> configuration.ConfigSummary | None:
        if self._deployment is None:
            return None
        return configuration.summary(self._deployment.config_status())

    def stacks(self) -> Stacks:
        """Return what the threads and the partitions are doing."""
        return Stacks(
            at=self._now(),
            threads=thread_stacks(),
            partitions=[
                self._partition(each, restoring, PartitionActivity)
                for channel in self._sorted()
                for restoring in [_restoring(channel)]
                for each in channel.partitions()
            ],
        )

    # --- parts ----------------------------------------------------------------------------------

    def _now(self) -> datetime:
        return moment(self._clock.time())

    def _sorted(self) -> list[InboundKafkaChannel]:
        return [channel for _, channel in sorted(dict(self._controller.channels).items())]

    def _channels(self) -> list[d.ChannelStatus]:
        summary = Summary(self._controller.metrics)
        return [self._channel(each, summary.channel(each.name)) for each in self._sorted()]

    def _process_status(self) -> d.ProcessStatus:
        return d.ProcessStatus(
            instance_id=self._controller.config.instance_id,
            phase=self._process.phase,
            version=VERSION,
            python=platform.python_version(),
            host=socket.gethostname(),
            pid=os.getpid(),
            config_file=str(self._process.file),
            started_at=moment(self._started),
            uptime_s=round(self._clock.monotonic() - self._started_monotonic, 3),
        )

    def _zookeeper(self) -> d.ZooKeeperStatus:
        session = self._controller.session
        number = session.session_id
        return d.ZooKeeperStatus(
            state=session.state,
            hosts=list(self._controller.config.zookeeper.hosts),
            session_id=f"{number:#x}" if number else None,
            session_timeout_s=session.session_timeout,
        )

    def _spark(self) -> d.SparkStatus | None:
        snapshot = self._controller.spark()
        if snapshot is None:
            return None
        return d.SparkStatus(
            running=snapshot.running,
            master=self._controller.config.spark.master,
            pid=snapshot.pid,
            generation=snapshot.generation,
            cores=snapshot.cores,
        )

    def _totals(self, name: str, held: list[PartitionSnapshot], done: ChannelSummary) -> d.Totals:
        lag = sum(each.lag_records or 0 for each in held)
        rate = self._rates.of_channel(name, done.records)
        trend = self._rates.trend(name, lag, rate)
        return d.Totals(
            records=int(done.records),
            records_per_s=rate,
            skipped_records=int(done.skipped),
            overflow_records=int(done.overflow),
            dead_letters=int(done.dead_letters),
            errors=int(done.errors),
            commit_failures=int(done.commit_failures),
            enforced=int(done.enforced),
            rebalances=int(done.rebalances),
            lag=lag,
            lag_per_s=trend.per_s,
            catch_up_s=trend.catch_up,
            held_bytes=sum(each.held_bytes for each in held),
            partitions=dict(Counter(PartitionState(each.state) for each in held)),
        )

    def _partitions(
        self, held: list[PartitionSnapshot], restoring: Mapping[int, d.RestoreStatus]
    ) -> list[d.PartitionStatus]:
        ordered = sorted(held, key=lambda each: (each.topic, each.partition))
        return [self._partition(each, restoring, d.PartitionStatus) for each in ordered]

    def _partition(
        self, each: PartitionSnapshot, restoring: Mapping[int, d.RestoreStatus], document: type[P]
    ) -> P:
        held_back = each.held_back_seconds
        named = {
            "end": each.end,
            "lag": each.lag_records,
            "lag_s": each.lag_seconds,
            "sink_age_s": each.sink_seconds,
            "records_per_s": self._rates.of_partition(each),
            "suspect_records": each.suspect_records,
            "held_back_until": None
            if held_back is None
            else moment(self._clock.time() + held_back),
            "callback_s": each.callback_seconds,
            "restoring": restoring.get(each.partition),
        }
        return document.model_validate(each.facts() | named)

    def _group(self, channel: InboundKafkaChannel) -> Group:
        nodes = read_nodes(self._controller.session, channel.config.group, channel.topics)
        own = self._controller.config.instance_id
        return Group(
            channel=channel.name,
            group=channel.config.group,
            members=[_group_member(each.facts(), own) for each in nodes.group_members],
            owners={str(p): name or None for p, name in nodes.owner_names.items()},
        )


def _state_by_key(channel: InboundKafkaChannel) -> d.StateTotals | None:
    reader = state_reader_of(channel)
    if reader is None:
        return None
    found = reader.snapshot()
    size = found.size
    return d.StateTotals(
        rows=None if size is None else size.rows,
        bytes=None if size is None else size.bytes,
        timers=None if size is None else size.timers,
        quarantined=None if size is None else size.quarantined,
        keys_touched=found.keys_touched,
        timers_fired=found.timers_fired,
        late=found.late,
        rejected=found.rejected,
        restoring=found.restoring,
        restore_remaining=found.restore_remaining,
        unwritten_bytes=found.unwritten_bytes,
        stream_time_lag_s=found.stream_time_lag,
        phases=[
            d.PhaseStatus(name=each.name, keys=each.keys, oldest_s=each.oldest)
            for each in found.phases
        ],
        amounts=dict(found.amounts),
        counts=dict(found.counts),
        operators=[_operator(each) for each in found.operators],
        standbys=[standby_status(*each) for each in reader.standbys()],
    )


def _operator(each: OperatorSnapshot) -> d.OperatorStatus:
    counts = each.counts
    return d.OperatorStatus(
        name=each.name,
        kind=each.kind,
        store=each.store,
        records=counts.get("records", 0),
        late=counts.get("late"),
        alone=counts.get("alone"),
        closed=counts.get("closed"),
        skipped=counts.get("skipped"),
        rows=each.rows,
        bytes=each.bytes,
        operator_time_lag_s=each.time_lag,
    )


def _pool(channel: InboundKafkaChannel) -> d.PoolStatus | None:
    found = channel.pool
    if found is None:
        return None
    return d.PoolStatus(
        threads=found.threads,
        busy=found.busy,
        waiting=found.waiting,
        ended=dict(found.ended),
        left=found.left,
    )


def _restoring(channel: InboundKafkaChannel) -> dict[int, d.RestoreStatus]:
    """Return how far partitions are whose state is not there yet, by number."""
    reader = state_reader_of(channel)
    if reader is None:
        return {}
    found = {each.partition: restore_status(each) for each in reader.partitions()}
    return {number: status for number, status in found.items() if status is not None}


def pause_status(pause: Pause) -> d.PauseStatus:
    """Describe a pause."""
    partition = pause.partition
    return d.PauseStatus(
        reason=pause.reason,
        mode=pause.mode,
        by=pause.by,
        since=moment(pause.since),
        until=None if pause.until is None else moment(pause.until),
        topic=None if partition is None else partition.topic,
        partition=None if partition is None else partition.partition,
        note=pause.note,
    )


def _event(event: RecentEvent) -> EventStatus:
    return EventStatus(
        number=event.number,
        event=event.event,
        level=event.level,
        subject=event.subject,
        first=moment(event.first),
        last=moment(event.last),
        count=event.count,
        fields=event.fields,
    )


def skip_status(skip: Skip) -> d.SkipStatus:
    """Describe a record that is left out."""
    return d.SkipStatus(
        topic=skip.partition.topic,
        partition=skip.partition.partition,
        offset=skip.offset,
        reason=skip.reason,
        by=skip.by,
    )


def _member(channel: InboundKafkaChannel) -> d.MemberStatus:
    snapshot = channel.member
    lease = snapshot.lease_seconds
    return d.MemberStatus(
        state=snapshot.state,
        assignment=snapshot.assignment,
        epoch=snapshot.epoch,
        claims=snapshot.claims,
        lease_s=None if lease is None else round(lease, 3),
    )


def _group_member(facts: dict[str, Any], own: str) -> GroupMember:
    since = None if facts["since"] is None else moment(facts["since"])
    return GroupMember.model_validate({**facts, "this": facts["name"] == own, "since": since})
