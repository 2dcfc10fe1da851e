"""The commands for offsets, from a file's name to an exit code."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import typer
import yaml

from headrace.channel.offset_stores import open_offset_store
from headrace.config import load
from headrace.config.cli import EXIT_CONFIG, report
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import ConfigError, HeadraceError, UsageError
from headrace.core.files import write_whole
from headrace.core.positions import format_moment
from headrace.core.records import TopicPartition, identity_of
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.catalog import subscribers
from headrace.kafka.clients import client_properties
from headrace.ops.console import Column, figures, numeric, print_table
from headrace.ops.offsets.errors import ChannelRunningError
from headrace.ops.offsets.hold import refuse_members
from headrace.ops.offsets.plan import (
    GroupOffsets,
    change,
    partitions_of,
    plan_import,
    plan_reset,
    refuse_subscribers,
)
from headrace.ops.offsets.reader import ANSWER_TIMEOUT, Reader, selected
from headrace.ops.offsets.replay import ReplayRun, Settled
from headrace.ops.offsets.sink_offsets import StartPrecedence, start_precedence
from headrace.telemetry.logs import configure_logging
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import session_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from headrace.config import ChannelConfig, Config
    from headrace.core.positions import Replay, Target
    from headrace.ops.offsets.plan import OffsetChange, Plan
    from headrace.ops.offsets.reader import Cluster, PartitionOffsets, TopicSelection


#: Seconds in which ZooKeeper has to confirm the end of the session.
_CLOSE_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Access:
    """The access to one channel's offsets, to read and change them."""

    channel: ChannelConfig
    precedence: StartPrecedence
    reader: Reader
    group: GroupOffsets


@contextmanager
def access(config: Config, channel: ChannelConfig) -> Iterator[Access]:
    """Open the clients of one channel. Blocks until ZooKeeper answered, or for its time-out.

    Raises:
        ConfigError: something named in the configuration cannot be used.
        StartError: the processor cannot be imported, or ZooKeeper does not answer.
    """
    precedence = start_precedence(channel, config.python_path, config.kafka)
    properties = client_properties(config.kafka)
    catalog = KafkaTopicCatalog(properties, channel.group)
    with ExitStack() as stack:
        stack.callback(catalog.close)
        session = stack.enter_context(zookeeper_session(config))
        store = open_offset_store(channel, properties, session, SYSTEM_CLOCK)
        stack.callback(store.close)
        group = GroupOffsets(
            channel=channel,
            session=session,
            store=store,
            sink_offsets=precedence.sink_offsets,
            subscribers=lambda: subscribers(
                properties, channel.group, Deadline.after(ANSWER_TIMEOUT)
            ),
            clock=SYSTEM_CLOCK,
        )
        reader = Reader(catalog, store, precedence.sink_offsets, SYSTEM_CLOCK)
        yield Access(channel, precedence, reader, group)


@contextmanager
def zookeeper_session(config: Config) -> Iterator[ZooKeeperSession]:
    """Connect without the daemon's stored credentials: they belong to its own session."""
    session = ZooKeeperSession(session_settings(config.zookeeper))
    session.start()
    try:
        yield session
    finally:
        session.close(Deadline.after(_CLOSE_TIMEOUT))


FORMAT_VERSION = 1
_VERSION_KEY = "headrace_offsets"
_KEYS = {_VERSION_KEY, "cluster", "group", "exported", "topics"}
_TOPIC_KEYS = {"id", "offsets"}


@dataclass(frozen=True, slots=True)
class OffsetsDocument:
    """Exported offsets. ``cluster`` and the topic ids are None where the file leaves them out.

    ``exported`` is a time in UTC for people; ``group`` says where the offsets come from.
    """

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str | None]
    cluster: str | None = None
    group: str | None = None
    exported: str | None = None

    def dump(self) -> str:
        """Return the file's text."""
        topics = {
            topic: {
                "id": topic_id,
                "offsets": {p.partition: o for p, o in self.offsets.items() if p.topic == topic},
            }
            for topic, topic_id in self.topic_ids.items()
        }
        document = {
            _VERSION_KEY: FORMAT_VERSION,
            "cluster": self.cluster,
            "group": self.group,
            "exported": self.exported,
            "topics": topics,
        }
        return yaml.safe_dump(document, sort_keys=False)

    @classmethod
    def parse(cls, text: str, name: str) -> OffsetsDocument:
        """Read a file's text; ``name`` is what messages call it.

        Raises:
            UsageError: with every mistake in it.
        """
        try:
            content = yaml.safe_load(text)
        except yaml.YAMLError as error:
            where = getattr(error, "problem_mark", None)
            line = "" if where is None else f" (line {where.line + 1})"
            raise UsageError(f"{name}{line}: is neither YAML nor JSON") from None
        return _Parser(name).document(content)


class _Parser:
    """Takes a file apart and collects what is wrong with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._problems: list[str] = []

    def document(self, content: Any) -> OffsetsDocument:
        if not isinstance(content, dict) or _VERSION_KEY not in content:
            self._add(f"is no export of offsets: it has no key {_VERSION_KEY}")
            raise UsageError(*self._problems)
        version = content[_VERSION_KEY]
        if version != FORMAT_VERSION or isinstance(version, bool):
            self._add(
                f"has format version {version!r}; this Headrace knows {FORMAT_VERSION}, so import "
                "it with the one that wrote it"
            )
            raise UsageError(*self._problems)
        self._unknown(content, _KEYS, "")
        topics = self._mapping(content.get("topics"), "topics")
        found = OffsetsDocument(
            offsets={p: o for t, entry in topics.items() for p, o in self._offsets(t, entry)},
            topic_ids={str(t): self._text(e, "id", f"topics.{t}.") for t, e in topics.items()},
            cluster=self._text(content, "cluster"),
            group=self._text(content, "group"),
            exported=self._text(content, "exported"),
        )
        if self._problems:
            raise UsageError(*self._problems)
        return found

    def _offsets(self, topic: Any, entry: Any) -> list[tuple[TopicPartition, int]]:
        self._unknown(self._mapping(entry, f"topics.{topic}"), _TOPIC_KEYS, f"topics.{topic}.")
        offsets = entry.get("offsets") if isinstance(entry, dict) else {}
        found = []
        for key, offset in self._mapping(offsets, f"topics.{topic}.offsets").items():
            number = str(key)
            if not number.isdecimal() or isinstance(key, bool):
                self._add(f"topics.{topic}.offsets: {key!r} is not the number of a partition")
            elif not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                self._add(f"topics.{topic}.offsets.{number}: {offset!r} is not an offset")
            else:
                found.append((TopicPartition(str(topic), int(number)), offset))
        return found

    def _mapping(self, value: Any, path: str) -> dict[Any, Any]:
        if isinstance(value, dict):
            return value
        self._add(f"{path}: is missing or not a mapping")
        return {}

    def _text(self, content: Any, key: str, path: str = "") -> str | None:
        value = content.get(key) if isinstance(content, dict) else None
        if value is None or isinstance(value, str):
            return value
        self._add(f"{path}{key}: {value!r} is not a text; put it in quotes")
        return None

    def _unknown(self, content: dict[Any, Any], known: set[str], path: str) -> None:
        for key in content.keys() - known:
            self._add(f"{path}{key}: is not a known key")

    def _add(self, problem: str) -> None:
        self._problems.append(f"{self._name}: {problem}")


def offsets_table(found: Sequence[PartitionOffsets]) -> None:
    """Print where a channel's partitions stand."""
    print_table(offsets_json(found), _OFFSETS)


_OFFSETS: tuple[Column[dict[str, Any]], ...] = (
    Column("topic", itemgetter("topic")),
    *figures(partition="partition", group="group_offset", epoch="epoch", sink="sink_offset"),
    *figures(first="log_start", end="log_end", lag="lag"),
    Column("note", lambda each: "; ".join(each["notes"])),
)


def offsets_json(found: Sequence[PartitionOffsets]) -> list[dict[str, Any]]:
    """Return the same for scripts; null where there is nothing."""
    return [
        {
            **offsets.partition._asdict(),
            "group_offset": None if offsets.group is None else offsets.group.offset,
            "epoch": None if offsets.group is None else offsets.group.epoch,
            "sink_offset": offsets.sink,
            "next_offset": offsets.next,
            **offsets.log_facts(),
            "notes": [*offsets.disagreement, *offsets.remarks],
        }
        for offsets in found
    ]


def plan_table(plan: Plan) -> None:
    """Print what becomes of each partition."""
    print_table(plan_json(plan), _PLAN)


def _records(change: dict[str, Any]) -> str:
    old, new = change["old_offset"], change["new_offset"]
    return "" if old is None or new in {None, old} else f"{new - old:+d}"


_PLAN: tuple[Column[dict[str, Any]], ...] = (
    Column("topic", itemgetter("topic")),
    *figures(partition="partition", old="old_offset", new="new_offset"),
    numeric("records", _records),
    Column("note", lambda each: "; ".join(each["notes"])),
)


def plan_json(plan: Plan) -> list[dict[str, Any]]:
    """Return the same for scripts."""
    return [_change(change) for change in plan]


def print_json(document: object) -> None:
    """Print JSON on standard output."""
    typer.echo(json.dumps(document, indent=2))


def _change(change: OffsetChange) -> dict[str, Any]:
    group = change.found.group
    return {
        **change.found.partition._asdict(),
        "old_offset": change.found.next,
        "new_offset": change.after,
        "group_offset": None if group is None else group.offset,
        "sink_offset": change.found.sink,
        "changes": change.moves,
        "notes": [*change.notes, *change.found.disagreement],
    }


if TYPE_CHECKING:
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
    return _run_guarded(file, config, command)


def _run_guarded(file: Path, config: Config, command: Callable[[Config], int | None]) -> int:
    try:
        # what is worth a log line of a daemon would be in a command's way
        configure_logging(config.logging.model_copy(update={"level": "warning"}))
        code = command(config)
    except ConfigError as error:
        report(file, error)
        return EXIT_CONFIG
    except UsageError as error:
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
        UsageError: there is none of that name, or several and none was named.
    """
    names = list(config.channels)
    if channel is None and len(names) == 1:
        return names[0]
    if channel is None:
        raise UsageError(f"there are several channels; choose one: --channel {'|'.join(names)}")
    if channel not in config.channels:
        raise UsageError(f"there is no channel {channel}; choose from {', '.join(names)}")
    return channel


def show(
    config: Config, channel: str | None, choices: Sequence[TopicSelection], *, as_json: bool
) -> None:
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
                "sink_offsets_known": opened.precedence.out_of_reach is None,
                "partitions": offsets_json(found),
            }
        )
        if not as_json:
            typer.echo(f"channel {name}, group {opened.channel.group}")
            offsets_table(found)
        if opened.precedence.out_of_reach is not None:
            typer.echo(_out_of_reach(name, opened), err=True)
    if as_json:
        print_json(documents)


def reset(
    config: Config,
    channel: str | None,
    target: Target,
    choices: Sequence[TopicSelection],
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

        job = _OffsetsJob(name, opened, cluster, "reset", replay, as_json=as_json)
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

        job = _OffsetsJob(name, opened, cluster, "import", replay, as_json=as_json)
        job.run(partitions, planner, dry_run=dry_run)


def export(
    config: Config, channel: str | None, choices: Sequence[TopicSelection], file: Path
) -> None:
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
        raise HeadraceError(f"{file} cannot be written: {error.strerror}") from error
    typer.echo(f"{len(offsets)} of {len(found)} partitions have an offset; written to {file}")


class _OffsetsJob:
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
        self._replaying = ReplayRun(
            opened.channel, opened.precedence.sink_offsets, replay, self._partition_name
        )
        self._settled = Settled(())
        self._as_json = as_json

    def run(self, partitions: Sequence[TopicPartition], planner: Planner, *, dry_run: bool) -> None:
        def planned(found: Sequence[PartitionOffsets]) -> Plan:
            settled = self._settled = self._replaying.settle(planner(found))
            if not self._as_json:
                plan_table(settled.plan)
            if settled.refused is not None and not dry_run:
                raise UsageError(f"nothing was changed: {settled.refused}")
            return settled.plan

        if dry_run:
            planned(_read(self._opened, partitions, self._cluster))
            self._dry_run()
            return
        change(
            self._opened.group,
            partitions,
            self._read_one,
            planned,
            self._operation,
            replay=self._replaying.choice,
        )
        self._print_outcome(dry_run=False, refused=None)

    def _partition_name(self, identity: str) -> str:
        """Return what a partition is called, by what a sink stores its offset under."""
        group = self._opened.channel.group
        for partition in self._cluster.partitions:
            topic_id = self._cluster.topics[partition.topic].topic_id
            if identity == identity_of(self._cluster.id, group, topic_id, partition.partition):
                return str(partition)
        return identity

    def _read_one(self, partition: TopicPartition) -> PartitionOffsets:
        return self._opened.reader.of(partition, self._cluster, self._opened.channel.group)

    def _dry_run(self) -> None:
        refused = self._settled.refused
        try:
            refuse_members(self._opened.group.session, self._opened.channel.group)
            refuse_subscribers(self._opened.group)
        except ChannelRunningError as error:
            refused = str(error)
        self._print_outcome(dry_run=True, refused=refused)

    def _print_outcome(self, *, dry_run: bool, refused: str | None) -> None:
        settled, choice = self._settled, self._replaying.choice
        if self._as_json:
            print_json(
                {
                    "channel": self._name,
                    "group": self._opened.channel.group,
                    "operation": self._operation,
                    "dry_run": dry_run,
                    "refused": refused,
                    "replay": None if choice is None else choice.value,
                    "output": settled.effect,
                    "rows_removed": settled.rows,
                    "partitions": plan_json(settled.plan),
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


def _existing(
    opened: Access, cluster: Cluster, choices: Sequence[TopicSelection]
) -> list[TopicPartition]:
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
        raise UsageError(f"{file} cannot be read: {reason}") from error


def _refuse_out_of_reach(name: str, opened: Access) -> None:
    if opened.precedence.out_of_reach is not None:
        raise HeadraceError(_out_of_reach(name, opened))


def _out_of_reach(name: str, opened: Access) -> str:
    return (
        f"channel {name}: the {opened.precedence.out_of_reach} keeps offsets of its own "
        "(it has a stored_offset), which win over the group's at the start and can neither be read "
        "nor changed from here; change them where it keeps them, and the next start "
        "commits them to the group"
    )
