"""What the commands do, from a file's name to an exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from headrace.clock import SYSTEM_CLOCK
from headrace.config import load
from headrace.config.cli import EXIT_CONFIG, report
from headrace.config.kinds.moments import format_moment
from headrace.errors import ConfigError, HeadraceError
from headrace.files import write_whole
from headrace.logs import configure_logging
from headrace.offsets import views
from headrace.offsets.access import Access, access
from headrace.offsets.changing import change, refuse_subscribers
from headrace.offsets.document import OffsetsDocument
from headrace.offsets.errors import ChannelRunningError, OffsetsError, RequestError
from headrace.offsets.hold import refuse_members
from headrace.offsets.importing import partitions_of, plan_import
from headrace.offsets.planning import plan_reset
from headrace.offsets.replaying import Replaying, Settled
from headrace.offsets.selection import selected
from headrace.records import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headrace.config import Config
    from headrace.config.kinds.targets import Replay, Target
    from headrace.offsets.planning import Plan
    from headrace.offsets.reading import Cluster, PartitionOffsets
    from headrace.offsets.selection import Choice
    from headrace.records import TopicPartition

    #: Makes a plan of what was found.
    Planner = Callable[[Sequence[PartitionOffsets]], Plan]

EXIT_FAILED = 1
EXIT_RUNNING = 3


def guarded(
    file: Path,
    command: Callable[[Config], int | None],
    otherwise: Callable[[ConfigError], int | None] = lambda _: None,
) -> int:
    """Load the configuration, run a command with it, and return the exit code: its own or 0.

    Where the file cannot be used, ``otherwise`` may do without and return the exit code.
    """
    try:
        config = load(file)
    except ConfigError as error:
        code = otherwise(error)
        if code is None:
            report(file, error)
        return EXIT_CONFIG if code is None else code
    return _guarded(file, config, command)


def _guarded(file: Path, config: Config, command: Callable[[Config], int | None]) -> int:
    try:
        # what is worth a log line of a daemon would be in a command's way
        configure_logging(config.logging.model_copy(update={"level": "warning"}))
        code = command(config)
    except ConfigError as error:
        report(file, error)
        return EXIT_CONFIG
    except RequestError as error:
        typer.echo(str(error), err=True)
        return EXIT_CONFIG
    except ChannelRunningError as error:
        typer.echo(str(error), err=True)
        return EXIT_RUNNING
    except HeadraceError as error:
        typer.echo(str(error), err=True)
        return EXIT_FAILED
    return code or 0


def channel_name(config: Config, channel: str | None) -> str:
    """Return the channel that is meant.

    Raises:
        RequestError: there is none of that name, or several and none was named.
    """
    names = list(config.channels)
    if channel is None and len(names) == 1:
        return names[0]
    if channel is None:
        raise RequestError([f"there are several channels; choose one: --channel {'|'.join(names)}"])
    if channel not in config.channels:
        raise RequestError([f"there is no channel {channel}; choose from {', '.join(names)}"])
    return channel


def show(config: Config, channel: str | None, choices: Sequence[Choice], *, as_json: bool) -> None:
    """Print where the partitions of one channel, or of all, stand."""
    documents: list[dict[str, Any]] = []
    for name in config.channels if channel is None else [channel_name(config, channel)]:
        with access(config, config.channels[name]) as opened:
            cluster = _cluster(opened)
            found = _read(opened, _existing(opened, cluster, choices), cluster)
        documents.append(
            {
                "channel": name,
                "group": opened.channel.group,
                "sink_offsets_known": opened.keeping.out_of_reach is None,
                "partitions": views.offsets_json(found),
            }
        )
        if not as_json:
            typer.echo(f"channel {name}, group {opened.channel.group}")
            views.offsets_table(found)
        if opened.keeping.out_of_reach is not None:
            typer.echo(_out_of_reach(name, opened), err=True)
    if as_json:
        views.print_json(documents)


def reset(
    config: Config,
    channel: str | None,
    target: Target,
    choices: Sequence[Choice],
    *,
    replay: Replay | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move the offsets of a stopped channel to ``target``."""
    name = channel_name(config, channel)
    with access(config, config.channels[name]) as opened:
        _refuse_out_of_reach(name, opened)
        cluster = _cluster(opened)
        partitions = selected(choices, opened.channel.subscription, cluster.topics)

        def planner(found: Sequence[PartitionOffsets]) -> Plan:
            return plan_reset(target, found, opened.reader.offset_at)

        job = _Job(name, opened, cluster, "reset", replay, as_json=as_json)
        job.run(partitions, planner, dry_run=dry_run)


def import_offsets(
    config: Config,
    channel: str | None,
    file: Path,
    *,
    replay: Replay | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move the offsets of a stopped channel to those in a file."""
    name = channel_name(config, channel)
    document = OffsetsDocument.parse(_text(file), str(file))
    with access(config, config.channels[name]) as opened:
        _refuse_out_of_reach(name, opened)
        cluster = opened.reader.cluster(document.topic_ids)
        partitions = partitions_of(document, opened.channel.subscription, cluster)

        def planner(found: Sequence[PartitionOffsets]) -> Plan:
            return plan_import(document, found)

        job = _Job(name, opened, cluster, "import", replay, as_json=as_json)
        job.run(partitions, planner, dry_run=dry_run)


def export(config: Config, channel: str | None, choices: Sequence[Choice], file: Path) -> None:
    """Write where a start of the channel would go on to a file."""
    name = channel_name(config, channel)
    with access(config, config.channels[name]) as opened:
        _refuse_out_of_reach(name, opened)
        cluster = _cluster(opened)
        found = _read(opened, _existing(opened, cluster, choices), cluster)
    offsets = {o.partition: o.next for o in found if o.next is not None}
    topics = sorted({o.partition.topic for o in found})
    document = OffsetsDocument(
        offsets=offsets,
        topic_ids={topic: cluster.topics[topic].topic_id for topic in topics},
        cluster=cluster.id,
        group=opened.channel.group,
        exported=format_moment(int(SYSTEM_CLOCK.time()) * 1000),
    )
    if str(file) == "-":
        typer.echo(document.dump(), nl=False)
        return
    try:
        write_whole(file, document.dump())
    except OSError as error:
        raise OffsetsError(f"{file} cannot be written: {error.strerror}") from error
    typer.echo(f"{len(offsets)} of {len(found)} partitions have an offset; written to {file}")


class _Job:
    """One change of offsets, as it is reported."""

    def __init__(
        self,
        name: str,
        opened: Access,
        cluster: Cluster,
        operation: str,
        replay: Replay | None,
        *,
        as_json: bool,
    ) -> None:
        self._name = name
        self._opened = opened
        self._cluster = cluster
        self._operation = operation
        self._replaying = Replaying(opened.channel, opened.keeping.keeper, replay, self._named)
        self._settled = Settled(())
        self._as_json = as_json

    def run(self, partitions: Sequence[TopicPartition], planner: Planner, *, dry_run: bool) -> None:
        def planned(found: Sequence[PartitionOffsets]) -> Plan:
            settled = self._settled = self._replaying.settle(planner(found))
            if not self._as_json:
                views.plan_table(settled.plan)
            if settled.refused is not None and not dry_run:
                raise RequestError([f"nothing was changed: {settled.refused}"])
            return settled.plan

        if dry_run:
            planned(_read(self._opened, partitions, self._cluster))
            self._rehearse()
            return
        change(
            self._opened.group,
            partitions,
            self._read_one,
            planned,
            self._operation,
            replay=self._replaying.choice,
        )
        self._tell(dry_run=False, refused=None)

    def _named(self, identity: str) -> str:
        """Return what a partition is called, by what a sink stores its offset under."""
        group = self._opened.channel.group
        for partition in self._cluster.partitions:
            topic_id = self._cluster.topics[partition.topic].topic_id
            if identity == identity_of(self._cluster.id, group, topic_id, partition.partition):
                return str(partition)
        return identity

    def _read_one(self, partition: TopicPartition) -> PartitionOffsets:
        return self._opened.reader.of(partition, self._cluster, self._opened.channel.group)

    def _rehearse(self) -> None:
        refused = self._settled.refused
        try:
            refuse_members(self._opened.group.session, self._opened.channel.group)
            refuse_subscribers(self._opened.group)
        except ChannelRunningError as error:
            refused = str(error)
        self._tell(dry_run=True, refused=refused)

    def _tell(self, *, dry_run: bool, refused: str | None) -> None:
        settled, choice = self._settled, self._replaying.choice
        if self._as_json:
            views.print_json(
                {
                    "channel": self._name,
                    "group": self._opened.channel.group,
                    "operation": self._operation,
                    "dry_run": dry_run,
                    "refused": refused,
                    "replay": None if choice is None else choice.value,
                    "output": settled.effect,
                    "rows_removed": settled.rows,
                    "partitions": views.plan_json(settled.plan),
                }
            )
            return
        if settled.effect is not None:
            typer.echo(settled.effect)
        moved = sum(change.moves for change in settled.plan)
        verb = "would move" if dry_run else "moved"
        typer.echo(f"{moved} of {len(settled.plan)} partitions {verb}")
        if refused is not None:
            typer.echo(f"it would be refused now: {refused}", err=True)


def _read(
    opened: Access, partitions: Sequence[TopicPartition], cluster: Cluster
) -> list[PartitionOffsets]:
    return opened.reader.offsets(partitions, cluster, opened.channel.group)


def _cluster(opened: Access) -> Cluster:
    """Return what there is of the channel's topics."""
    return opened.reader.cluster(opened.reader.topics(opened.channel.subscription))


def _existing(opened: Access, cluster: Cluster, choices: Sequence[Choice]) -> list[TopicPartition]:
    """Return what there is to look at; of what is missing it is said and no more."""
    subscription = opened.channel.subscription
    if choices:
        return selected(choices, subscription, cluster.topics)
    for topic in sorted(set(subscription.names) - cluster.topics.keys()):
        typer.echo(f"topic {topic} does not exist on the brokers", err=True)
    for pattern in subscription.fruitless(cluster.topics):
        typer.echo(f"no topic on the brokers matches {pattern}", err=True)
    return cluster.partitions


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8") if str(file) != "-" else sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise RequestError([f"{file} cannot be read: {reason}"]) from error


def _refuse_out_of_reach(name: str, opened: Access) -> None:
    if opened.keeping.out_of_reach is not None:
        raise OffsetsError(_out_of_reach(name, opened))


def _out_of_reach(name: str, opened: Access) -> str:
    return (
        f"channel {name}: the {opened.keeping.out_of_reach} keeps offsets of its own "
        "(it has a stored_offset), which win over the group's at the start and can neither be read "
        "nor changed from here; change them where it keeps them, and the next start "
        "commits them to the group"
    )
