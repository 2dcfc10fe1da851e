"""What the commands do with transactions, from a configuration to what is printed."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from headrace.admin.tables import duration, plain_table
from headrace.channel.offset_stores import sink_is_fenced
from headrace.coordinators.group_nodes import group_names, read_nodes
from headrace.coordinators.znodes import producer_prefix
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError
from headrace.core.positions import format_moment
from headrace.core.records import TopicPartition, all_partitions
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.catalog import matching
from headrace.kafka.clients import client_properties
from headrace.kafka.fencing import GroupPartition, fence_producers
from headrace.kafka.result_transactions import sink_group
from headrace.kafka.transaction_log import TransactionLog
from headrace.tools.offsets.commands import channel_name, zookeeper_session
from headrace.tools.offsets.reader import ANSWER_TIMEOUT, ChannelRunningError, RequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from headrace.config import ChannelConfig, Config
    from headrace.coordinators.group_nodes import GroupNodes
    from headrace.kafka.transaction_log import LoggedTransaction

#: Seconds in which the brokers have to end a transaction.
_ABORT_TIMEOUT = 60.0

#: More than any row takes: a terminal breaks long lines by itself, others want them whole.
_WIDTH = 10_000


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
        """Whether the brokers should have ended it by now."""
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
    """What the brokers and ZooKeeper have of one channel's transactions."""

    def __init__(self, config: Config, channel: ChannelConfig) -> None:
        self._config = config
        self._group = channel.group
        self.channel = channel
        self.properties = dict(client_properties(config.kafka))
        self._log = TransactionLog(self.properties)
        self.topics = self._topics()

    def _topics(self) -> dict[str, int]:
        """Return the topics that the channel reads, and how many partitions each has."""
        with closing(KafkaTopicCatalog(self.properties, self._group)) as catalog:
            deadline = Deadline.after(ANSWER_TIMEOUT)
            subscription = self.channel.subscription
            matched = matching(catalog, subscription, deadline)
            named = catalog.describe([*subscription.names, *matched], deadline)
        return {name: info.partitions for name, info in named.items()}

    def found(self) -> list[FoundTransaction]:
        """Return the transactions of the group, and all that touch topics that it reads."""
        with zookeeper_session(self._config) as session:
            nodes = read_nodes(session, self._group, self.topics)
            groups = group_names(session)
        now = SYSTEM_CLOCK.time() * 1000
        found = []
        for name, each in sorted(self._log.transactions().items()):
            is_ours = is_of_group(name, self._group, groups)
            if not is_ours and not any(p.topic in self.topics for p in each.partitions):
                continue
            age = None if each.started is None else max(0.0, (now - each.started) / 1000)
            owner = owner_of(name, self._group, nodes) if is_ours else None
            found.append(FoundTransaction(each, is_ours, owner, age))
        return found

    def held_back(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the partitions that readers of committed records cannot read to their end."""
        return self._log.held_back(all_partitions(self.topics))


def is_of_group(transactional_id: str, group: str, groups: Collection[str]) -> bool:
    """Whether a producer is of a group, and of none of ``groups`` whose name goes on from there."""
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
    found = [each for each in survey.found() if every or each.logged.state.is_open]
    held_back = survey.held_back()
    if as_json:
        document = {
            "channel": name,
            "group": survey.channel.group,
            "transactions": [each.document() for each in found],
            "held_back": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "readable_to": stable,
                    "end": end,
                    "transactional_ids": _ids(found, partition),
                }
                for partition, (stable, end) in sorted(held_back.items())
            ],
        }
        typer.echo(json.dumps(document, indent=2))
        return
    _print(found)
    _print_held_back(held_back, found)


def _ids(found: Sequence[FoundTransaction], partition: TopicPartition) -> list[str]:
    return [
        each.logged.transactional_id
        for each in found
        if each.logged.state.is_open and partition in each.logged.partitions
    ]


def _print(found: Sequence[FoundTransaction]) -> None:
    if not found:
        typer.echo("no open transactions")
        return
    numbers = ("producer", "epoch", "open for")
    table = plain_table(
        "transactional id", "state", *numbers, "owner", "partitions", right={*numbers}
    )
    for each in found:
        logged = each.logged
        age = duration(each.age) if each.age is not None and logged.state.is_open else "-"
        late = f" (overdue: its time-out is {duration(logged.timeout_ms / 1000)})"
        owner = each.owner or ("no running member" if each.is_ours else "another program")
        table.add_row(
            Text(logged.transactional_id),
            logged.state.name.lower().replace("_", " "),
            str(logged.producer_id),
            str(logged.producer_epoch),
            f"{age}{late if each.is_overdue else ''}",
            Text(owner),
            Text(", ".join(map(str, logged.partitions)) or "-"),
        )
    Console(soft_wrap=True, width=_WIDTH).print(table)


def _print_held_back(
    held_back: Mapping[TopicPartition, tuple[int, int]], found: Sequence[FoundTransaction]
) -> None:
    for partition, (stable, end) in sorted(held_back.items()):
        ids = ", ".join(_ids(found, partition))
        who = f"by {ids}" if ids else (
            "by a transaction that no coordinator knows of: see kafka-transactions.sh "
            "find-hanging and abort, of the brokers"
        )  # fmt: skip
        typer.echo(f"{partition} can be read up to {stable} of {end}: held back {who}")


def abort(
    config: Config,
    channel: str | None,
    transactional_id: str,
    *,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Shut a producer out, which ends its transaction.

    Raises:
        RequestError: there is no such transaction, or the answer was no.
        ChannelRunningError: a running member owns it.
        HeadraceError: the brokers did not do it.
    """
    name = channel_name(config, channel)
    survey = _TransactionSurvey(config, config.channels[name])
    known = {each.logged.transactional_id: each for each in survey.found()}
    if transactional_id not in known:
        raise _refused(
            f"channel {name} has no transaction {transactional_id}; headrace transactions list "
            "--all shows those of its group and of topics that it reads"
        )
    found = known[transactional_id]
    if not force:
        require_hanging(found)
    if not yes and not typer.confirm(
        f"Shut the producer {transactional_id} out and abort what it has open?"
    ):
        raise _refused("nothing was changed")
    _fence(survey, found)
    after = TransactionLog(survey.properties).transactions().get(transactional_id)
    state = "forgotten" if after is None else after.state.name.lower()
    if after is not None and after.state.is_open:
        raise HeadraceError(
            f"{transactional_id} is {state.replace('_', ' ')} still; see headrace transactions list"
        )
    if as_json:
        document = {"transactional_id": transactional_id, "before": found.document()["state"]}
        typer.echo(json.dumps({**document, "after": state}))
    else:
        typer.echo(f"{transactional_id} is shut out, and has no open transaction")


def require_hanging(found: FoundTransaction) -> None:
    """Refuse a transaction that may be somebody's who goes on with it, or that is none."""
    logged = found.logged
    if found.owner is not None:
        raise ChannelRunningError(
            f"{logged.transactional_id} is the producer of the running member {found.owner}; stop "
            "it, or say --force, which has it join its group again"
        )
    if not logged.state.is_open:
        raise _refused(
            f"{logged.transactional_id} has no open transaction: its last one is "
            f"{logged.state.name.lower().replace('_', ' ')}; say --force where offsets of the "
            "group cannot be read all the same"
        )
    if not found.is_ours:
        raise _refused(
            f"{logged.transactional_id} is no producer of the channel's group, and whether its "
            "program runs is not known here; say --force to shut it out"
        )


def _refused(problem: str) -> RequestError:
    return RequestError([problem])


def _fence(survey: _TransactionSurvey, found: FoundTransaction) -> None:
    """Begin again under the id; of the group's own producers end what groups have in doubt, too."""
    deadline = Deadline.after(_ABORT_TIMEOUT)
    place = None
    if found.is_ours and survey.topics:
        group = survey.channel.group
        stored_in = sink_group(group) if sink_is_fenced(survey.channel) else group
        place = GroupPartition(stored_in, TopicPartition(min(survey.topics), 0))
    fence_producers(survey.properties, [found.logged.transactional_id], deadline, place)
