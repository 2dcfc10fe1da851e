"""Comparing a store of two topologies, row by row: ``headrace streams compare``.

Both changelogs are read, and nothing is held or changed. A changelog is read up to an end at which
no transaction was open, between two looks at the offsets that are stored with it: so it is known
of which records its rows are, also while the topology runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import itemgetter
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import typer

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.positions import format_moment
from headrace.core.records import TopicPartition, identity_of
from headrace.extensions.streams.operators import TableSource
from headrace.extensions.streams.runtime.stored_rows import StoredRows
from headrace.extensions.streams.runtime.stores import time_key
from headrace.kafka import KafkaTopicCatalog
from headrace.ops.console import Column, figures, print_table
from headrace.ops.offsets.reader import ANSWER_TIMEOUT
from headrace.ops.state.change import StateOf
from headrace.ops.streams.commands import plan_of, topology_name, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.config import Config
    from headrace.extensions.streams.plan import Channel, Plan, Store
    from headrace.kafka.ports import StoredOffset
    from headrace.ops.state.changelog import ChangelogTable

EXIT_DIFFERENT = 1

#: Rows that are shown of those that differ.
_SHOWN = 10

#: Seconds between two looks at a partition that is written to.
_RETRY = 0.02


class RowName(NamedTuple):
    """A row's key, and what tells it from the key's other rows."""

    key: bytes
    place: tuple[tuple[str, int | str], ...]

    def document(self) -> dict[str, Any]:
        """Return it as JSON values; a key that is no text in hexadecimal digits."""
        try:
            return {"key": self.key.decode(), **dict(self.place)}
        except UnicodeDecodeError:
            return {"key_hex": self.key.hex(), **dict(self.place)}


#: The values of rows by their names. Records in the buffer of a join may have a name in common.
NamedRows: TypeAlias = Mapping[RowName, Sequence[bytes]]


class Difference(NamedTuple):
    """A row that two stores do not have alike; a value is None where there is no such row."""

    name: RowName
    one: bytes | None
    other: bytes | None


@dataclass(slots=True)
class Comparison:
    """The outcome of comparing rows: how many are the same, and the first of the others."""

    same: int = 0
    different: int = 0
    only_one: int = 0
    only_other: int = 0
    shown: list[Difference] = field(default_factory=list)

    @property
    def differing(self) -> int:
        """Return how many rows are not the same."""
        return self.different + self.only_one + self.only_other

    def add(self, one: NamedRows, other: NamedRows) -> None:
        """Compare rows, all of those that have these names."""
        names = {*one, *other}
        found = list[Difference]()
        for name in names:
            left, right = _unequal(one.get(name, ()), other.get(name, ()))
            self.same += len(one.get(name, ())) - len(left)
            found += (Difference(name, *pair) for pair in zip_longest(left, right))
        self.only_one += sum(each.other is None for each in found)
        self.only_other += sum(each.one is None for each in found)
        self.different += sum(None not in {each.one, each.other} for each in found)
        room = _SHOWN - len(self.shown)
        self.shown += sorted(found, key=itemgetter(0))[:room]


def _unequal(one: Sequence[bytes], other: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return the values of each side that the other has not, in an order of their own."""
    if one == other:
        return [], []
    left, right = sorted(one), sorted(other)
    for value in tuple(left):
        found = next((each for each in right if _is_equal(value, each)), None)
        if found is not None:
            left.remove(value)
            right.remove(found)
    return left, right


def _is_equal(one: bytes, other: bytes) -> bool:
    """Return whether two values say the same in JSON, however they are written."""
    return one == other or json.loads(one) == json.loads(other)


@dataclass(frozen=True, slots=True)
class Position:
    """The offset that rows are of: that of the next record of a partition. None: none was read.

    ``end`` is where the partition ended.
    """

    partition: TopicPartition
    offset: int | None
    end: int


@dataclass(frozen=True, slots=True)
class StoreOf:
    """One of two stores: of which topology it is, and the channel that has it."""

    topology: str
    plan: Plan
    store: Store
    part: Channel
    state: StateOf

    @classmethod
    def of(cls, config: Config, topology: str, store: str) -> StoreOf:
        """Return a store of a topology by its name.

        Raises:
            UsageError: there is no such topology or store, or it has no changelog of its own.
            ConfigError: the topology cannot be planned.
        """
        plan = plan_of(config, topology_name(config, topology))
        named = {each.name: each for each in plan.stores}
        if store not in named:
            raise unknown(f"store of topology {topology} by the name", store, list(named))
        found = named[store]
        operator = plan.operators[found.operator]
        if isinstance(operator, TableSource) and operator.shared:
            raise UsageError(
                f"store {store} of topology {topology} is a shared table: all rows are those of "
                f"topic {operator.topic} in each process, so there is nothing to compare"
            )
        (part,) = (each for each in plan.channels if found.holder in each.operators)
        return cls(topology, plan, found, part, StateOf.of(config, part.name))

    @property
    def is_by_key(self) -> bool:
        """Return whether a topology put the records where they are, each by its key."""
        return self.part.topics[0] in self.plan.by_key.values()


def require_alike(one: StoreOf, other: StoreOf) -> None:
    """Return if rows of two stores can be the same.

    Raises:
        UsageError: they are of different kinds, keys, windows or values.
    """
    if one.store.fingerprint == other.store.fingerprint:
        return
    left, right = one.store.kept, other.store.kept
    if left.get("kind") != right.get("kind"):
        names = ["kind"]
    else:
        names = [name for name in left if left[name] != right.get(name)]
    said = "; ".join(
        f"{name} is {_brief(left[name])} in {one.topology}, and {_brief(right.get(name))} in "
        f"{other.topology}"
        for name in names
    )
    raise UsageError(
        f"store {one.store.name} is not of the same rows in both: {said}. Compare what the "
        "topologies write, by a reader of both topics"
    )


def _brief(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class OpenStore:
    """A store whose changelog is read. Every method blocks."""

    def __init__(self, found: StoreOf, stack: ExitStack) -> None:
        """Open the clients; ``stack`` closes them.

        Raises:
            UsageError: the channel of the store never ran, or a topic does not exist.
        """
        self._found = found
        state = found.state
        self._changelog: ChangelogTable = stack.enter_context(state.changelog())
        self._transactions = stack.enter_context(closing(state.transactions()))
        uncommitted = {**state.properties, "isolation.level": "read_uncommitted"}
        heads = KafkaTopicCatalog(uncommitted, state.channel.group)
        self._heads = stack.enter_context(closing(heads))
        self.partitions = self._changelog.partitions
        topics, deadline = found.part.topics, Deadline.after(ANSWER_TIMEOUT)
        info = self._changelog.catalog.describe(topics, deadline)
        if missing := sorted(set(topics) - info.keys()):
            raise UsageError(f"topic {missing[0]}, which {found.part.name} reads, does not exist")
        cluster = self._changelog.catalog.cluster_id(deadline)
        group = state.channel.group
        self._identities = {
            TopicPartition(topic, number): identity_of(cluster, group, info[topic].topic_id, number)
            for topic in topics
            for number in range(info[topic].partitions)
        }
        self._format = StoredRows(found.plan, found.store)
        #: The offsets that the rows which were read are of, and operator times by partition.
        self.positions: list[Position] = []
        self.times: dict[int, int] = {}

    def rows(self, number: int) -> Iterator[tuple[RowName, bytes]]:
        """Yield the rows of a partition as they were committed, and note of which offsets.

        Raises:
            HeadraceError: the partition was written to without a pause.
        """
        ends, stored = self._settled(number)
        self.positions += (
            Position(partition, None if entry is None else entry.offset, self._end(partition))
            for partition, entry in stored.items()
        )
        prefix, time = self._format.prefix, time_key(self._found.store.rows)
        last: dict[bytes, bytes] = {}
        for key, logged in self._changelog.records(number, ends):
            if not key.startswith(prefix) and key != time:
                continue
            if logged.row is None:
                last.pop(key, None)
            else:
                last[key] = logged.row.value
        if time in last:
            self.times[number] = int(last.pop(time))
        for key, value in last.items():
            row = self._format.read(key, value)
            yield RowName(row.key, row.place), row.value

    def show(self, value: bytes | None) -> Any:
        """Return what a value says, None where there is none."""
        return None if value is None else self._format.show(value)

    def _settled(
        self, number: int
    ) -> tuple[tuple[int, int], Mapping[TopicPartition, StoredOffset | None]]:
        """Return where a partition begins and ends, and the offsets of the commit before that."""
        place = TopicPartition(self._changelog.topic, number)
        deadline = Deadline.after(ANSWER_TIMEOUT)
        while True:
            before = self._stored(number)
            low, end = self._heads.watermarks(place, Deadline.after(ANSWER_TIMEOUT))
            # what is open there may be committed meanwhile, with other offsets
            is_decided = self._changelog.ends(number)[1] == end
            if is_decided and _counted(before) == _counted(self._stored(number)):
                return (low, end), before
            if deadline.expired:
                raise HeadraceError(
                    f"{place} was written to at each of many looks, or has a transaction that "
                    "does not end, so it cannot be said of which records its rows are. Run the "
                    "command again, or stop the topology before; headrace transactions shows "
                    "what is open"
                )
            Event().wait(deadline.at_most(_RETRY))

    def _stored(self, number: int) -> dict[TopicPartition, StoredOffset | None]:
        return {
            partition: self._transactions.stored_entry(identity)
            for partition, identity in self._identities.items()
            if partition.partition == number
        }

    def _end(self, partition: TopicPartition) -> int:
        _, end = self._changelog.catalog.watermarks(partition, Deadline.after(ANSWER_TIMEOUT))
        return end


def _counted(
    stored: Mapping[TopicPartition, StoredOffset | None],
) -> dict[TopicPartition, tuple[int, int | None] | None]:
    """Return what changes with each commit, also with one that moves no offset."""
    return {
        partition: None if entry is None else (entry.offset, entry.commits)
        for partition, entry in stored.items()
    }


def compare(config: Config, one: str, other: str, store: str, *, as_json: bool) -> int:
    """Compare a store of two topologies; return the exit code.

    Raises:
        UsageError: the stores cannot be compared.
        HeadraceError: one of them cannot be read.
    """
    if one == other:
        raise UsageError(
            f"both are {one}; name two topologies, of which one may be the same code with another "
            "group"
        )
    found = [StoreOf.of(config, name, store) for name in (one, other)]
    require_alike(*found)
    with ExitStack() as stack:
        left, right = (OpenStore(each, stack) for each in found)
        comparison = Comparison()
        for numbers in together(found, left.partitions, right.partitions):
            rows = [
                by_name(row for number in each for row in opened.rows(number))
                for opened, each in zip((left, right), numbers, strict=True)
            ]
            comparison.add(*rows)
        opened = dict(zip((one, other), (left, right), strict=True))
        if as_json:
            typer.echo(json.dumps(document(store, comparison, opened), default=str, indent=2))
        else:
            print_comparison(store, comparison, opened)
    return EXIT_DIFFERENT if comparison.differing else 0


def by_name(rows: Iterable[tuple[RowName, bytes]]) -> dict[RowName, list[bytes]]:
    """Return rows by their names."""
    found: dict[RowName, list[bytes]] = {}
    for name, value in rows:
        found.setdefault(name, []).append(value)
    return found


def together(
    stores: Sequence[StoreOf], one: int, other: int
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield the partitions of two stores that have rows of the same keys.

    That is partition by partition where keys are placed alike, and all of them otherwise.
    """
    left, right = stores
    is_alike = (left.is_by_key and right.is_by_key) or left.part.topics[0] == right.part.topics[0]
    if is_alike and one == other:
        yield from (([number], [number]) for number in range(one))
    else:
        yield range(one), range(other)


# --- what is printed -----------------------------------------------------------------------------


def document(store: str, comparison: Comparison, opened: Mapping[str, OpenStore]) -> dict[str, Any]:
    """Return the outcome as JSON values."""
    (one, left), (other, right) = opened.items()
    return {
        "store": store,
        "same": comparison.same,
        "different": comparison.different,
        "only": {one: comparison.only_one, other: comparison.only_other},
        "differences": [
            {
                **each.name.document(),
                "values": {one: left.show(each.one), other: right.show(each.other)},
            }
            for each in comparison.shown
        ],
        "offsets": list(_offsets(opened)),
    }


def _offsets(opened: Mapping[str, OpenStore]) -> Iterator[dict[str, Any]]:
    for topology, each in opened.items():
        for position in each.positions:
            yield {
                "topology": topology,
                **position.partition._asdict(),
                "offset": position.offset,
                "log_end": position.end,
                "operator_time": each.times.get(position.partition.partition),
            }


_OFFSETS: tuple[Column[dict[str, Any]], ...] = (
    Column("topology", itemgetter("topology")),
    Column("topic", itemgetter("topic")),
    *figures(partition="partition", offset="offset", end="log_end"),
    Column("operator time", lambda each: _moment(each["operator_time"])),
)


def _moment(time: int | None) -> str | None:
    return None if time is None else format_moment(time)


def print_comparison(store: str, comparison: Comparison, opened: Mapping[str, OpenStore]) -> None:
    """Print the outcome for people."""
    one, other = opened
    typer.echo(
        f"store {store}: {comparison.same} rows are the same, {comparison.different} differ, "
        f"{comparison.only_one} only in {one}, {comparison.only_other} only in {other}"
    )
    print_table(_offsets(opened), _OFFSETS)
    for each in document(store, comparison, opened)["differences"]:
        values = each.pop("values")
        said = (
            f"{name} {'has no such row' if value is None else json.dumps(value, default=str)}"
            for name, value in values.items()
        )
        typer.echo(f"  {json.dumps(each, ensure_ascii=False)}: {'; '.join(said)}")
    left_out = comparison.differing - len(comparison.shown)
    if left_out:
        typer.echo(f"  and {left_out} more")
