"""The commands for transactions, from a configuration to what is printed."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from headrace.channel.offset_stores import sink_is_fenced
from headrace.config.derived import written_topics
from headrace.coordinators.fencing_locks import FencingLocks
from headrace.coordinators.group_nodes import group_names, read_nodes
from headrace.coordinators.znodes import producer_prefix
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.positions import format_moment
from headrace.core.records import TopicPartition, all_partitions
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.catalog import matching
from headrace.kafka.clients import client_properties
from headrace.kafka.errors import KafkaAccessError
from headrace.kafka.fencing import Finishing, GroupPartition, begin_again, fence_producers
from headrace.kafka.result_transactions import sink_group
from headrace.kafka.transaction_log import (
    OFFSETS_TOPIC,
    Decided,
    Decision,
    TransactionLog,
    TransactionState,
    internal_partition,
)
from headrace.ops.console import Column, duration, numeric, print_table
from headrace.ops.offsets.commands import channel_name, zookeeper_session
from headrace.ops.offsets.errors import ChannelRunningError
from headrace.ops.offsets.reader import ANSWER_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.config import ChannelConfig, Config
    from headrace.coordinators.group_nodes import GroupNodes
    from headrace.kafka.transaction_log import Hold, LoggedTransaction

#: Seconds in which the brokers have to end a transaction.
_ABORT_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class FoundTransaction:
    """A transaction that concerns a channel. ``owner`` is the running member that has it.

    ``is_ours``: its id is one of the channel's group. ``age`` is in seconds, None where none began.
    """

    logged: LoggedTransaction
    is_ours: bool
    owner: str | None
    age: float | None

    @property
    def is_overdue(self) -> bool:
        """Return whether the brokers should have ended it by now."""
        limit = self.logged.timeout_ms / 1000
        return self.logged.state.is_open and self.age is not None and self.age > limit

    def document(self) -> dict[str, Any]:
        """Return it for scripts."""
        logged = self.logged
        return {
            "transactional_id": logged.transactional_id,
            "state": logged.state.name.lower(),
            "open": logged.state.is_open,
            "producer_id": logged.producer_id,
            "producer_epoch": logged.producer_epoch,
            "since": None if logged.started is None else format_moment(logged.started),
            "updated": format_moment(logged.updated),
            "timeout_s": logged.timeout_ms / 1000,
            "overdue": self.is_overdue,
            "of_the_group": self.is_ours,
            "owner": self.owner,
            "partitions": [str(each) for each in logged.partitions],
        }


class _TransactionSurvey:
    """The transactions of one channel, as the brokers and ZooKeeper have them."""

    def __init__(self, config: Config, channel: ChannelConfig) -> None:
        self._config = config
        self._group = channel.group
        self.channel = channel
        self.properties = dict(client_properties(config.kafka))
        self.log = TransactionLog(self.properties)
        self.topics = self._topics()
        self.written = self._existing(written_topics(channel) - self.topics.keys())
        self.unseen: list[str] = []

    def _topics(self) -> dict[str, int]:
        """Return the topics that the channel reads, and how many partitions each has."""
        with closing(KafkaTopicCatalog(self.properties, self._group)) as catalog:
            deadline = Deadline.after(ANSWER_TIMEOUT)
            subscription = self.channel.subscription
            matched = matching(catalog, subscription, deadline)
            named = catalog.describe([*subscription.names, *matched], deadline)
        return {name: info.partitions for name, info in named.items()}

    def _existing(self, topics: Collection[str]) -> dict[str, int]:
        with closing(KafkaTopicCatalog(self.properties, self._group)) as catalog:
            found = catalog.describe(topics, Deadline.after(ANSWER_TIMEOUT))
        return {name: info.partitions for name, info in found.items()}

    @property
    def stored_in(self) -> str:
        """Return the group that the channel's producers store offsets in."""
        return sink_group(self._group) if sink_is_fenced(self.channel) else self._group

    def found(self, holds: Mapping[TopicPartition, Hold]) -> list[FoundTransaction]:
        """Return the transactions of the group, and all that touch topics of the channel.

        One that has ended names no topics any more; those are among them that hold readers back.
        """
        holding = {name for hold in holds.values() for name in hold.decided}
        with zookeeper_session(self._config) as session:
            nodes = read_nodes(session, self._group, self.topics)
            groups = group_names(session)
        now = SYSTEM_CLOCK.time() * 1000
        found = []
        topics = self.topics.keys() | self.written.keys()
        for name, each in sorted(self.log.transactions().items()):
            is_ours = is_of_group(name, self._group, groups)
            touches = name in holding or any(p.topic in topics for p in each.partitions)
            if not is_ours and not touches:
                continue
            age = None if each.started is None else max(0.0, (now - each.started) / 1000)
            owner = owner_of(name, self._group, nodes) if is_ours else None
            found.append(FoundTransaction(each, is_ours, owner, age))
        return found

    def holds(self) -> dict[TopicPartition, Hold]:
        """Return what holds readers back: of topics that are read and written, and of the offsets.

        ``unseen`` says afterwards what this user may not look at.
        """
        self.unseen.clear()
        partitions = all_partitions({**self.topics, **self.written})
        try:
            total = self._existing([OFFSETS_TOPIC]).get(OFFSETS_TOPIC, 0)
        except KafkaAccessError as error:
            total = 0
            self.unseen.append(str(error))
        groups = {self._group, self.stored_in} if total else set()
        numbers = {internal_partition(each, total) for each in groups}
        offsets = {TopicPartition(OFFSETS_TOPIC, number) for number in numbers}
        prefix = producer_prefix(self._group)
        return {
            partition: hold
            for partition, hold in self.log.holds({*partitions, *offsets}).items()
            # other groups have offsets there as well
            if partition not in offsets
            or not (names := hold.going_on or tuple(hold.decided))
            or any(name.startswith(prefix) for name in names)
        }

    def place(self, found: FoundTransaction) -> GroupPartition | None:
        """Return where a producer of the group stored offsets, None for another's."""
        return self.any_place() if found.is_ours and self.topics else None

    def any_place(self) -> GroupPartition:
        """Return where the group stores offsets.

        Raises:
            UsageError: none of its topics exists.
        """
        if not self.topics:
            raise UsageError(f"none of the topics {self.channel.subscription} exists")
        place = TopicPartition(min(self.topics), 0)
        own = self.channel.processor.own_topics(self.channel)
        return GroupPartition(self.stored_in, place, own)


def is_of_group(transactional_id: str, group: str, groups: Collection[str]) -> bool:
    """Return whether a producer is of a group, and of none of ``groups`` whose name goes on from
    there.
    """
    fitting = [
        each for each in {group, *groups} if transactional_id.startswith(producer_prefix(each))
    ]
    return max(fitting, key=len, default=None) == group


def owner_of(transactional_id: str, group: str, nodes: GroupNodes) -> str | None:
    """Return the running member that has a producer, as ``name at host``; None: none has."""
    name = transactional_id.removeprefix(producer_prefix(group)).rpartition(".")[0]
    named = {
        partition: epoch.document.transactional_id
        for partition, epoch in nodes.epochs.items()
        if epoch.document is not None
    }
    owners = nodes.owner_names
    holders = {owners[p] for p, each in named.items() if each == transactional_id and p in owners}
    if not holders and name in nodes.members:
        # the member runs; that its claims name another producer says that this one is a former one
        others = {named.get(p) for p, member in owners.items() if member == name}
        holders = set() if others - {None} else {name}
    if not holders:
        return None
    holder = min(holders)
    found = nodes.members.get(holder)
    document = None if found is None else found.document
    return holder if document is None else f"{holder} at {document.host} (pid {document.pid})"


def list_transactions(config: Config, channel: str | None, *, every: bool, as_json: bool) -> None:
    """Print the transactions that concern a channel, and where readers wait.

    Raises:
        HeadraceError: the brokers or ZooKeeper did not answer.
    """
    name = channel_name(config, channel)
    survey = _TransactionSurvey(config, config.channels[name])
    holds = survey.holds()
    found = [each for each in survey.found(holds) if every or each.logged.state.is_open]
    if as_json:
        document = {
            "channel": name,
            "group": survey.channel.group,
            "transactions": [each.document() for each in found],
            "held_back": [_held_document(each, hold) for each, hold in sorted(holds.items())],
            "not_seen": survey.unseen,
        }
        typer.echo(json.dumps(document, indent=2))
        return
    print_table(found, _TRANSACTIONS, empty="no open transactions")
    _print_holds(holds)
    for problem in survey.unseen:
        typer.echo(problem, err=True)


def _held_document(partition: TopicPartition, hold: Hold) -> dict[str, Any]:
    """Return a partition that is held back for scripts."""
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "readable_to": hold.stable,
        "end": hold.end,
        "transactional_ids": list(hold.going_on or hold.decided),
        "for_good": hold.is_for_good,
        "decided": {name: what.value for name, what in hold.decided.items()},
    }


def _open_for(each: FoundTransaction) -> str:
    age = duration(each.age) if each.age is not None and each.logged.state.is_open else "-"
    late = f" (overdue: its time-out is {duration(each.logged.timeout_ms / 1000)})"
    return f"{age}{late if each.is_overdue else ''}"


_TRANSACTIONS: tuple[Column[FoundTransaction], ...] = (
    Column("transactional id", lambda each: each.logged.transactional_id),
    Column("state", lambda each: each.logged.state.name.lower().replace("_", " ")),
    numeric("producer", lambda each: each.logged.producer_id),
    numeric("epoch", lambda each: each.logged.producer_epoch),
    numeric("open for", _open_for),
    Column(
        "owner",
        lambda each: each.owner or ("no running member" if each.is_ours else "another program"),
    ),
    Column("partitions", lambda each: ", ".join(map(str, each.logged.partitions)) or "-"),
)


def _print_holds(holds: Mapping[TopicPartition, Hold]) -> None:
    for partition, hold in sorted(holds.items()):
        typer.echo(f"{partition} can be read up to {hold.stable} of {hold.end}: {_why(hold)}")


def _why(hold: Hold) -> str:
    if hold.going_on:
        return f"held back by {', '.join(hold.going_on)}"
    if hold.decided:
        ids = " or ".join(f"{name}, decided as {what.value}" for name, what in hold.decided.items())
        return (
            f"held back for good, as the brokers lost a mark of {ids}; headrace transactions "
            "settle ID finishes it"
        )
    return (
        "held back by a transaction that no coordinator knows of: see kafka-transactions.sh "
        "find-hanging and abort, of the brokers"
    )


def _require_released(survey: _TransactionSurvey, transactional_id: str) -> None:
    """Raise where an id holds readers back still, or may."""
    left = {
        partition: hold
        for partition, hold in survey.holds().items()
        if transactional_id in hold.going_on
        or (hold.is_for_good and (not hold.decided or transactional_id in hold.decided))
    }
    if left:
        lines = [
            f"{partition} can be read up to {hold.stable} of {hold.end}: {_why(hold)}"
            for partition, hold in sorted(left.items())
        ]
        raise HeadraceError(
            "\n".join([f"{transactional_id} is shut out, and is held back still:", *lines])
        )


def abort(
    config: Config,
    channel: str | None,
    transactional_id: str,
    *,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Fence a producer, which ends its transaction.

    Raises:
        UsageError: there is no such transaction, or the answer was no.
        ChannelRunningError: a running member owns it.
        HeadraceError: the brokers did not do it.
    """
    name = channel_name(config, channel)
    survey = _TransactionSurvey(config, config.channels[name])
    found = _require_found(survey, name, transactional_id)
    if not force:
        require_hanging(found)
    if not yes and not typer.confirm(
        f"Shut the producer {transactional_id} out and abort what it has open?"
    ):
        raise UsageError("nothing was changed")
    with zookeeper_session(config) as session:
        fence_producers(
            survey.properties,
            [transactional_id],
            Deadline.after(_ABORT_TIMEOUT),
            survey.place(found),
            FencingLocks(session, survey.channel.group),
        )
    after = TransactionLog(survey.properties).transactions().get(transactional_id)
    state = "forgotten" if after is None else after.state.name.lower()
    if after is not None and after.state.is_open:
        raise HeadraceError(
            f"{transactional_id} is {state.replace('_', ' ')} still; see headrace transactions list"
        )
    _require_released(survey, transactional_id)
    if as_json:
        document = {"transactional_id": transactional_id, "before": found.document()["state"]}
        typer.echo(json.dumps({**document, "after": state}))
    else:
        typer.echo(f"{transactional_id} is shut out, and has no open transaction")


def _require_found(
    survey: _TransactionSurvey, name: str, transactional_id: str
) -> FoundTransaction:
    known = {each.logged.transactional_id: each for each in survey.found(survey.holds())}
    if transactional_id not in known:
        raise UsageError(
            f"channel {name} has no transaction {transactional_id}; headrace transactions list "
            "--all shows those of its group and of topics that it reads or writes"
        )
    return known[transactional_id]


def settle(
    config: Config,
    channel: str | None,
    transactional_id: str,
    *,
    decision: Decision | None,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Finish what the brokers decided of an id and did not mark, or as ``decision`` says.

    Raises:
        UsageError: there is no such transaction, it is open, or the answer was no.
        ChannelRunningError: a running member owns it.
        HeadraceError: the brokers did not do it, or readers are held back still.
    """
    name = channel_name(config, channel)
    survey = _TransactionSurvey(config, config.channels[name])
    found = _require_found(survey, name, transactional_id)
    require_decided(found)
    if not force:
        require_settled(found)
    held = {
        partition: hold
        for partition, hold in survey.holds().items()
        if hold.is_for_good and (transactional_id in hold.decided or not hold.decided)
    }
    place = survey.any_place()
    known = survey.log.decided([transactional_id])[transactional_id]
    if decision is not None:
        known = Decided(dict.fromkeys(held, decision), decision)
    if not yes:
        _print_holds(held)
        said = "as it was decided" if decision is None else f"as {decision.value}"
        if not typer.confirm(f"Shut the producer {transactional_id} out and finish {said}?"):
            raise UsageError("nothing was changed")
    with (
        zookeeper_session(config) as session,
        FencingLocks(session, survey.channel.group)(
            transactional_id, Deadline.after(_ABORT_TIMEOUT)
        ),
    ):
        producer = begin_again(survey.properties, transactional_id, Deadline.after(_ABORT_TIMEOUT))
        finishing = Finishing(survey.properties, place, producer)
        if found.is_ours:
            finishing.finish(known)
        else:
            finishing.finish_topics(known)
    _require_released(survey, transactional_id)
    partitions = [str(each) for each in sorted(held)]
    if as_json:
        document = {"transactional_id": transactional_id, "finished": partitions}
        typer.echo(json.dumps(document))
    else:
        typer.echo(
            f"{transactional_id} is shut out, and nothing is held back by it any more"
            + (f"; finished: {', '.join(partitions)}" if partitions else "")
        )


def require_decided(found: FoundTransaction) -> None:
    """Refuse a transaction of which nothing is decided: to shut its producer out would abort it."""
    logged = found.logged
    if logged.state is TransactionState.ONGOING:
        raise UsageError(
            f"{logged.transactional_id} has an open transaction, of which nothing is decided; "
            "headrace transactions abort ends it"
        )


def require_settled(found: FoundTransaction) -> None:
    """Refuse a transaction that brokers are at, and a producer that another may go on with."""
    logged = found.logged
    if found.owner is not None:
        raise ChannelRunningError(
            f"{logged.transactional_id} is the producer of the running member {found.owner}; stop "
            "it, or say --force, which has it join its group again"
        )
    if logged.state.is_open:
        raise UsageError(
            f"{logged.transactional_id} is {logged.state.name.lower().replace('_', ' ')}: the "
            "brokers are marking its partitions. Wait a moment, or say --force where it stays so"
        )
    if not found.is_ours:
        raise UsageError(
            f"{logged.transactional_id} is no producer of the channel's group, and whether its "
            "program runs is not known here; say --force to shut it out"
        )


def require_hanging(found: FoundTransaction) -> None:
    """Refuse a transaction whose producer may go on with it, or that is none."""
    logged = found.logged
    if found.owner is not None:
        raise ChannelRunningError(
            f"{logged.transactional_id} is the producer of the running member {found.owner}; stop "
            "it, or say --force, which has it join its group again"
        )
    if not logged.state.is_open:
        raise UsageError(
            f"{logged.transactional_id} has no open transaction: its last one is "
            f"{logged.state.name.lower().replace('_', ' ')}; say --force where offsets of the "
            "group cannot be read all the same"
        )
    if not found.is_ours:
        raise UsageError(
            f"{logged.transactional_id} is no producer of the channel's group, and whether its "
            "program runs is not known here; say --force to shut it out"
        )
