"""Documents and endpoints of topologies' stores: their rows, with the fields that operators write.

A row stands in an answer as its operator writes it, digit by digit, so answers are put together as
text.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import quote

from fastapi import Path, Query, Response

from headrace.core.errors import HeadraceError
from headrace.core.positions import parse_moment
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.streams.errors import QuestionError
from headrace.extensions.streams.questions import KeyQuestion, PageQuestion
from headrace.extensions.streams.section import StreamsProcessorConfig
from headrace.ops.admin.document import Document, Number, Offset, SendableText
from headrace.ops.admin.key_paths import place_of_key
from headrace.ops.admin.models import ApiError, StandbyStatus, unknown
from headrace.ops.admin.state import (
    MOST_KEYS,
    Asked,
    RestoringPartition,
    bytes_of_digits,
    held_elsewhere,
    read_cursor,
    reader_of,
    restore_status,
    restoring_error,
    standby_status,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.extensions.keyed.state_reader import RowsReader, StatePartition, StateReader
    from headrace.extensions.streams.operators import Output
    from headrace.extensions.streams.plan import Channel, Plan, Store
    from headrace.extensions.streams.runtime.store_reader import StoreReader, StoreRow, StoreRows
    from headrace.ops.admin.ports import Controller

#: The latest time that a row may have, in milliseconds: the end of the year 9999.
_LAST_TIME = 253_402_300_799_999


class KeyPart(Document):
    """A part of a store's key."""

    type: str
    """Its type, as a program has it."""
    field: str | None
    """The field of the rows that is equal to it; null: none is."""


class StoreStatus(Document):
    """A store of a topology."""

    name: str
    """Its name, which is its operator's."""
    kind: str
    """Its kind: rows, windows, sessions, table, foreign_join, keyed or join. Of a join its rows
    cannot be asked for."""
    windows: dict[str, Any] | None
    """Its windows, with size, every, gap and grace in milliseconds; null: it has none."""
    key: list[KeyPart]
    """The parts of its key."""
    fields: dict[str, str]
    """The types of the fields of a row, by their names in JSON."""
    channel: str
    """The channel that has it."""
    partitions: Number | None
    """Its partitions; null: this process does not run the channel, or does not know yet."""
    here: list[Number]
    """The partitions that this process can be asked for now."""


class Stores(Document):
    """The stores of a topology."""

    topology: str
    """The topology."""
    stores: list[StoreStatus]
    """The stores, by name."""


class StoreWindow(Document):
    """A window. Of sessions and sliding windows the end is a record's time, else the first after
    it.
    """

    start: datetime
    """Its start."""
    end: datetime
    """Its end."""


class StoreTimer(Document):
    """A timer of a reducer's key."""

    name: SendableText
    """Its name."""
    due: datetime
    """The operator time with which it fires."""


class StoredRow(Document):
    """A row of a store."""

    key: SendableText
    """Its key: text, digits, or an array in JSON. Where its bytes are no UTF-8, or the store's keys
    are bytes, in hexadecimal digits."""
    hex: bool
    """True if key is in hexadecimal digits."""
    partition: Number
    """Its partition's number."""
    window: StoreWindow | None
    """Its window; null: the store has none."""
    time: datetime | None
    """The time of the latest record in it; null: not known."""
    timers: list[StoreTimer]
    """The timers of a reducer's key, by name."""
    problem: SendableText | None
    """The reason why the row is null; null: it is there."""
    row: Any
    """The row as its operator writes it; of a reducer the state."""


class StorePosition(Document):
    """A position of a store's partition: rows are of exactly the records before it."""

    partition: Number
    """The partition's number."""
    offset: Offset | None
    """The offset; null where the channel reads several topics, and of a copy."""
    offsets: dict[str, Offset]
    """The same for each topic; of a copy none."""
    operator_time: datetime | None
    """The latest time of a record that came to the operator; null: it has none."""
    standby: StandbyStatus | None
    """The copy that the rows are of, and how far it is behind; null: they are the owner's."""


class KeyRows(Document):
    """The rows of a key."""

    topology: str
    """The topology."""
    store: str
    """The store."""
    partitions: Number
    """The number of the store's partitions."""
    position: StorePosition
    """The position of the key's partition."""
    rows: list[StoredRow]
    """The row; of a store with windows those that are not over, the latest one last."""


class RowsPage(Document):
    """Rows of a store."""

    topology: str
    """The topology."""
    store: str
    """The store."""
    partitions: Number
    """The number of the store's partitions."""
    positions: list[StorePosition]
    """The positions of the partitions that were looked at."""
    next: str | None
    """The value of after for the next page, which may be empty; null: there is none."""
    restoring: list[RestoringPartition]
    """Partitions of this process that are not in it, because their state is not there yet."""
    elsewhere: Number
    """Partitions that this process does not have."""
    rows: list[StoredRow]
    """The rows, by partition, window and key."""


TopologyName = Annotated[str, Path(description="The topology's name in the configuration.")]
StoreName = Annotated[str, Path(description="The store's name, which is its operator's.")]
RowKey = Annotated[
    str, Path(description="The key: its text, digits, or several parts as an array in JSON.")
]
From = Annotated[
    str | None,
    Query(
        alias="from",
        description="Only windows that start then or later, of sessions and sliding windows those "
        "that end then or later: milliseconds since 1970, or a time as 2013-01-01T05:00:00Z.",
    ),
]
To = Annotated[
    str | None, Query(alias="to", description="Only windows that start, or end, before.")
]
OneWindow = Annotated[
    str | None,
    Query(
        alias="window",
        description="Only windows that start then, of sessions and sliding windows those that end "
        "then.",
    ),
]
OneTask = Annotated[
    int | None, Query(ge=0, le=1 << 31, description="Only this partition, wherever it is.")
]
Stale = Annotated[
    bool,
    Query(
        description="A copy of the partition may answer where its owner is not here: standby of a "
        "position has how far it is behind. A member without one leads to the owner, or to a copy "
        "where there is none."
    ),
]
KeyInDigits = Annotated[
    bool,
    Query(
        alias="hex",
        description="The key is given by the hexadecimal digits of its bytes: of one that is no "
        "text, and of . and .., which clients take for folders.",
    ),
]
RowLimit = Annotated[int, Query(ge=1, le=MOST_KEYS, description="Rows of the page at most.")]


class _AskedStore(NamedTuple):
    """A store that is asked for, and the channel that has it."""

    plan: Plan
    store: Store
    output: Output
    channel: InboundKafkaChannel
    state: StateReader
    reader: StoreReader

    @property
    def partitions(self) -> int:
        """Return how many partitions there are, 0 where that is not known yet."""
        return self.channel.topics.get(self.channel.config.topics[0], 0)

    @property
    def copied(self) -> Sequence[int]:
        """Return the partitions of other members of which a copy can be read here now."""
        copies = self.state.copies
        return () if copies is None else copies.readable()

    @property
    def is_partitioned(self) -> bool:
        """Return whether keys are where Kafka's own producer puts them: we write the topics."""
        return {*self.channel.config.topics} <= {*self.plan.by_key.values()}

    @property
    def path(self) -> str:
        """Return where its rows are in the API."""
        topology, store = (quote(each, safe="") for each in (self.plan.name, self.store.name))
        return f"/api/v1/topologies/{topology}/stores/{store}"


class StoreQuestion(NamedTuple):
    """A store that is asked for keys, and the bounds of their windows as a request has them."""

    topology: str
    store: str
    since: str | None = None
    until: str | None = None


class StoreReads:
    """The endpoints of topologies' stores. Every method may block.

    Raises:
        ApiError: the question cannot be answered, here or at all.
        HeadraceError: the store cannot be read, or ZooKeeper did not answer.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        # by topology and name, with the store that each is of: plans change with a reload
        self._readers: dict[tuple[str, str], tuple[Store, StoreReader]] = {}

    def stores(self, topology: str) -> Stores:
        """Return the stores of a topology."""
        plan = self._plan(topology)
        channels = dict(self._controller.channels)
        return Stores(
            topology=topology,
            stores=[
                _described(plan, store, part, channels.get(part.name))
                for store, part in plan.stores_of_channels
            ],
        )

    def rows(
        self,
        topology: str,
        store: str,
        key: str,
        *,
        since: str | None,
        until: str | None,
        partition: int | None,
        is_hex: bool,
        stale: bool,
        led: int,
    ) -> Response:
        """Return the rows of a key."""
        asked = self._asked(topology, store)
        bounds = _bounds(asked, {"from": since, "to": until})
        name = bytes_of_digits(key) if is_hex else _key_of(asked, key)
        question = KeyQuestion((name,), *bounds)
        expected = _expected_in(asked, name, partition)
        # one look for both: what is restored in between was not looked into
        held = {each.partition: each for each in asked.state.partitions()}
        others = held if partition is None and not asked.is_partitioned else ()
        with _as_api_errors():
            answered = self._find(asked, question, held, [expected, *others])
            if answered is None and stale and expected not in held:
                answered = _find_copied(asked, question, expected)
        if answered is None:
            said = {"from": since, "to": until, "stale": "true" if stale else None}
            said["hex"], said["led"] = "true" if is_hex else None, str(led)
            raise self._not_found_error(asked, key, expected, held, said)
        number, found = answered
        rows = [_row(asked, number, each) for each in found.rows]
        return _answer(_head_of_keys(asked, number, found), rows)

    def rows_of_keys(self, question: StoreQuestion, keys: Sequence[str]) -> list[str | None]:
        """Return the answers to keys that are asked for together, None where :meth:`rows` says.

        That is where one is not in the partition in which Kafka's own producer puts it, where that
        is not here, and where the question is refused.
        """
        try:
            asked = self._asked(question.topology, question.store)
            bounds = _bounds(asked, {"from": question.since, "to": question.until})
        except HeadraceError:
            return [None] * len(keys)
        partitions = asked.partitions
        if not partitions:
            return [None] * len(keys)
        names: dict[int, dict[bytes, str]] = {}
        for key in dict.fromkeys(keys):
            try:
                name = _key_of(asked, key)
            except ApiError:
                continue
            names.setdefault(partition_of(name, partitions), {})[name] = key
        answers: dict[str, str] = {}
        for number, chosen in names.items():
            with suppress(HeadraceError):
                answers |= self._answers_in(asked, number, chosen, bounds)
        return [answers.get(key) for key in keys]

    @staticmethod
    def _answers_in(
        asked: _AskedStore, number: int, keys: Mapping[bytes, str], bounds: Sequence[int | None]
    ) -> dict[str, str]:
        """Return the answers to keys of a partition, of those that are there.

        Raises:
            HeadraceError: the partition cannot be read, or the question is refused.
        """
        if not asked.state.has(number):
            return {}
        found = asked.reader.get(asked.state, number, KeyQuestion(keys, *bounds))
        rows: dict[bytes, list[str]] = {}
        if asked.reader.has_windows and asked.is_partitioned:
            # no open window is an answer, too
            rows = {name: [] for name in keys}
        for each in found.rows:
            rows.setdefault(each.key, []).append(_row(asked, number, each))
        head = _head_of_keys(asked, number, found)
        return {keys[name]: _text_of_answer(head, own) for name, own in rows.items()}

    def _find(
        self,
        asked: _AskedStore,
        question: KeyQuestion,
        held: Mapping[int, StatePartition],
        numbers: Sequence[int],
    ) -> tuple[int, StoreRows] | None:
        """Return the rows of a key in the first of partitions that has any; None: none is there.

        Where the store has windows, none in the first partition is an answer as well.
        """
        nothing = None
        # others than the first have keys that a producer put elsewhere
        for number in dict.fromkeys(numbers):
            if number not in held or held[number].restoring is not None:
                continue
            found = asked.reader.get(asked.state, number, question)
            if found.rows:
                return number, found
            if number == numbers[0] and asked.reader.has_windows:
                nothing = number, found
        return nothing

    def _not_found_error(
        self,
        asked: _AskedStore,
        key: str,
        number: int,
        held: Mapping[int, StatePartition],
        said: Mapping[str, str | None],
    ) -> ApiError:
        """Return why there is nothing to show of a key here."""
        is_copied = said["stale"] is not None and number in asked.copied
        if number not in held and not is_copied and number < asked.partitions:
            place, named = place_of_key(key)
            query = {**_given(said), **named}
            path, led = f"{asked.path}/{place}", int(query.pop("led"))
            stale = said["stale"] is not None
            what = Asked(f"key {key}", key, path, query, stale=stale, led=led)
            return held_elsewhere(self._controller, asked.channel, number, what)
        if number in held and held[number].restoring is not None:
            return restoring_error(asked.channel, held[number])
        name = asked.store.name
        return ApiError(
            HTTPStatus.NOT_FOUND,
            "unknown_key",
            f"store {name} has no row of key {key}; it would be in partition {number}"
            f"{', of which a copy is here' if is_copied else ''}",
            value=key,
            next_step=f"headrace streams rows {asked.plan.name} {name} shows its rows. Producers "
            "that do not partition as Kafka's own put keys elsewhere: name the partition",
        )

    def page(
        self,
        topology: str,
        store: str,
        *,
        prefix: str,
        window: str | None,
        limit: int,
        after: str | None,
        partition: int | None,
        stale: bool,
        led: int,
    ) -> Response:
        """Return a page of rows."""
        asked = self._asked(topology, store)
        (chosen,) = _bounds(asked, {"window": window})
        start, first = read_cursor(after) or (0, b"")
        said = {"prefix": prefix or None, "window": window, "limit": str(limit), "after": after}
        said["stale"] = "true" if stale else None
        held = asked.state.partitions()
        numbers = {each.partition for each in held}
        rows: list[str] = []
        positions: list[StorePosition] = []
        following: str | None = None
        sources = self._sources_of_page(asked, held, partition, said, led)
        for number in sorted(sources):
            if number < start:
                continue
            if len(rows) == limit:
                following = f"{number}:"
                break
            question = PageQuestion(
                prefix.encode("utf-8", "surrogateescape"),
                chosen,
                first if number == start else b"",
                limit - len(rows),
            )
            with _as_api_errors():
                found = asked.reader.page(sources[number], number, question)
            rows += [_row(asked, number, each) for each in found.rows]
            positions.append(_position(asked, number, found))
            if found.next is not None:
                following = f"{number}:{found.next.hex()}"
                break
        return _answer(
            RowsPage(
                topology=topology,
                store=store,
                partitions=asked.partitions,
                positions=positions,
                next=following,
                restoring=[
                    RestoringPartition(partition=each.partition, progress=progress)
                    for each in held
                    if (progress := restore_status(each)) is not None
                ],
                elsewhere=max(0, asked.partitions - len(numbers | sources.keys())),
                rows=[],
            ).model_dump_json(),
            rows,
        )

    def _sources_of_page(
        self,
        asked: _AskedStore,
        held: Sequence[StatePartition],
        partition: int | None,
        said: Mapping[str, str | None],
        led: int,
    ) -> dict[int, RowsReader]:
        """Return what reads the partitions of a page: those here, or the one that is named."""
        stale, copies = said["stale"] is not None, asked.state.copies
        sources: dict[int, RowsReader] = {}
        if stale and copies is not None:
            sources.update(dict.fromkeys(asked.copied, copies))
        for each in held:
            # of one that was a copy a moment ago nothing says how far it is
            sources.pop(each.partition, None)
            if each.restoring is None:
                sources[each.partition] = asked.state
        if partition is None:
            return sources
        if partition in sources:
            return {partition: sources[partition]}
        for each in held:
            if each.partition == partition:
                raise restoring_error(asked.channel, each)
        if partition >= _require_partitions(asked):
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                "unknown_partition",
                f"store {asked.store.name} has no partition {partition}",
                value=str(partition),
                next_step=f"it has {asked.partitions}, which are numbered from 0 on",
            )
        name = f"that page of {asked.store.name}"
        what = Asked(name, str(partition), asked.path, _given(said), stale=stale, led=led)
        raise held_elsewhere(self._controller, asked.channel, partition, what)

    def _plan(self, topology: str) -> Plan:
        opened = {name: each.config for name, each in dict(self._controller.channels).items()}
        plans: dict[str, Plan] = {}
        # during the start some are not open yet
        for config in {**self._controller.config.channels, **opened}.values():
            if isinstance(section := config.processor, StreamsProcessorConfig):
                plan, _ = section.planned
                plans[plan.name] = plan
        if topology not in plans:
            raise unknown("topology", topology, plans)
        return plans[topology]

    def _asked(self, topology: str, name: str) -> _AskedStore:
        """Return a store that is asked for, with what reads it."""
        from headrace.extensions.streams.runtime.store_reader import (  # noqa: PLC0415 - needs NumPy
            store_reader_of,
        )

        plan = self._plan(topology)
        kept = {store.name: (store, part) for store, part in plan.stores_of_channels}
        if name not in kept:
            raise unknown("store", name, kept)
        store, part = kept[name]
        known = self._readers.get((topology, name))
        if known is not None and known[0] is store:
            reader = known[1]
        else:
            with _as_api_errors():
                reader = store_reader_of(plan, store)
            self._readers[topology, name] = store, reader
        output = plan.operators[store.operator].output
        assert output is not None, "rows come out"
        channel = dict(self._controller.channels).get(part.name)
        if channel is None and part.name in self._controller.config.channels:
            raise _not_started(part.name)
        if channel is None:
            raise ApiError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "held_elsewhere",
                f"store {name} is in channel {part.name}, which this process does not run",
                value=name,
                next_step=f"ask a process that runs {part.name}",
            )
        return _AskedStore(plan, store, output, channel, reader_of(channel), reader)


# --- what is asked ------------------------------------------------------------------------------


@contextmanager
def _as_api_errors() -> Iterator[None]:
    """Answer a question that a store refuses as a problem."""
    try:
        yield
    except QuestionError as error:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            error.name,
            error.text,
            value=error.value,
            next_step=error.next_step,
        ) from error


def _key_of(asked: _AskedStore, key: str) -> bytes:
    """Return the bytes of a key that a request names.

    Raises:
        ApiError: the store has no such keys.
    """
    from headrace.extensions.streams.keys import parse_key  # noqa: PLC0415 - needs NumPy

    # a reducer has the key of what comes in, which is that of its rows
    try:
        return parse_key(key, asked.output.key)
    except ValueError as error:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid_key",
            f"{key} is no key of store {asked.store.name}",
            value=key,
            next_step=f"its keys are {error}",
        ) from error


def _bounds(asked: _AskedStore, said: Mapping[str, str | None]) -> list[int | None]:
    """Return times that a request names, in milliseconds.

    Raises:
        ApiError: one is none, they are the wrong way round, or the store has no windows.
    """
    for name, text in said.items():
        if text is not None and not asked.reader.has_windows:
            raise ApiError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "no_windows",
                f"store {asked.store.name} has no windows",
                value=text,
                next_step=f"leave {name} out",
            )
    found = [None if text is None else _time(name, text) for name, text in said.items()]
    times = [each for each in found if each is not None]
    if times != sorted(times):
        first, last = said
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid_time",
            f"{first} is {said[first]}, which is after {last}, {said[last]}",
            value=said[first],
            next_step="give the earlier time first",
        )
    return found


def _time(name: str, text: str) -> int:
    try:
        found = int(text) if text.isdecimal() else parse_moment(text)
        if found > _LAST_TIME:
            raise ValueError(text)  # noqa: TRY301 - told as those of parse_moment
    except ValueError as error:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid_time",
            f"{name} is {text}, which is no time from 1970 to 9999",
            value=text,
            next_step="write milliseconds since 1970, or a time such as 2013-01-01T05:00:00Z",
        ) from error
    return found


def _find_copied(
    asked: _AskedStore, question: KeyQuestion, number: int
) -> tuple[int, StoreRows] | None:
    """Return the rows of a key in the copy of a partition; None: there is none of either.

    Where the store has windows, none in the copy is an answer as well.
    """
    copies = asked.state.copies
    if copies is None or number not in asked.copied:
        return None
    try:
        found = asked.reader.get(copies, number, question)
    except StateStoreError:
        # it was put off since then: another member may have the rows
        return None
    return (number, found) if found.rows or asked.reader.has_windows else None


def _given(said: Mapping[str, str | None]) -> dict[str, str]:
    """Return what a request names, to be asked of another member."""
    return {name: text for name, text in said.items() if text is not None}


def _expected_in(asked: _AskedStore, key: bytes, partition: int | None) -> int:
    """Return the partition in which a key has to be, if none is named.

    Raises:
        ApiError: it is not known yet how many there are.
    """
    return partition_of(key, _require_partitions(asked)) if partition is None else partition


def _require_partitions(asked: _AskedStore) -> int:
    if not asked.partitions:
        raise _not_started(asked.channel.name)
    return asked.partitions


def _not_started(channel: str) -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "not_started",
        f"channel {channel} is not started yet, or does not know its partitions",
        value=channel,
        next_step="ask again in some seconds; headrace status shows how the channel is",
        headers={"Retry-After": "1"},
    )


# --- what is answered -----------------------------------------------------------------------------


def _described(
    plan: Plan, store: Store, part: Channel, channel: InboundKafkaChannel | None
) -> StoreStatus:
    operator = plan.operators[store.operator]
    output = operator.output
    assert output is not None, "rows come out"
    reader = None if channel is None else reader_of(channel)
    held = () if reader is None else reader.partitions()
    counts = {} if channel is None else channel.topics
    return StoreStatus(
        name=store.name,
        kind=store.kind,
        windows=operator.document().get("windows"),
        key=[
            KeyPart(type=str(kind), field=field)
            for kind, field in zip(output.key, output.key_fields, strict=True)
        ],
        fields={each.name: str(each.type) for each in output.row.__fields__.values()},
        channel=part.name,
        partitions=counts.get(part.topics[0]),
        here=[each.partition for each in held if each.restoring is None],
    )


def _position(asked: _AskedStore, number: int, found: StoreRows) -> StorePosition:
    from headrace.extensions.keyed.standby_reader import (  # noqa: PLC0415 - needs RocksDB
        StandbyProgress,
    )

    progress, time = found.progress, time_of(found.time)
    if isinstance(progress, StandbyProgress):
        standby = standby_status(number, progress)
        return StorePosition(
            partition=number, offset=None, offsets={}, operator_time=time, standby=standby
        )
    return StorePosition(
        partition=number,
        offset=progress.offset if len(progress.offsets) <= 1 else None,
        offsets=asked.state.offsets(number, progress),
        operator_time=time,
        standby=None,
    )


def _row(asked: _AskedStore, number: int, found: StoreRow) -> str:
    """Return a row as it stands in an answer."""
    key, is_hex = _shown_key(found.key, asked.output)
    window = found.window
    if window is None and not found.timers and found.problem is None:
        # most rows by key, thousands a second: the same as the document, in a tenth of its time
        time = "null" if found.time is None else f'"{_shown_time(found.time)}"'
        return (
            f'{{"key":{json.dumps(key, ensure_ascii=False)},"hex":{"true" if is_hex else "false"},'
            f'"partition":{number},"window":null,"time":{time},"timers":[],"problem":null,'
            f'"row":{found.text or "null"}}}'
        )
    said = StoredRow(
        key=key,
        hex=is_hex,
        partition=number,
        window=None
        if window is None
        else StoreWindow(start=time_of(window.start), end=time_of(window.end)),
        time=time_of(found.time),
        timers=[
            StoreTimer(name=name, due=time_of(due)) for name, due in sorted(found.timers.items())
        ],
        problem=found.problem,
        row=None,
    )
    return said.model_dump_json().removesuffix("null}") + (found.text or "null") + "}"


def _shown_time(milliseconds: int) -> str:
    at = time_of(milliseconds)
    assert at is not None, "it is a time"
    return at.isoformat().replace("+00:00", "Z")


def _shown_key(key: bytes, output: Output) -> tuple[str, bool]:
    """Return a key as people see it, and whether that is in hexadecimal digits."""
    if [each.kind.value for each in output.key] != ["bytes"]:
        try:
            return key.decode(), False
        except UnicodeDecodeError:
            pass
    return key.hex(), True


def _head_of_keys(asked: _AskedStore, number: int, found: StoreRows) -> str:
    """Return what an answer to a key begins with."""
    return KeyRows(
        topology=asked.plan.name,
        store=asked.store.name,
        partitions=asked.partitions,
        position=_position(asked, number, found),
        rows=[],
    ).model_dump_json()


def _text_of_answer(head: str, rows: Sequence[str]) -> str:
    """Return an answer with rows, which are its last member."""
    return f"{head.removesuffix('[]}')}[{','.join(rows)}]}}"


def _answer(head: str, rows: Sequence[str]) -> Response:
    return Response(_text_of_answer(head, rows), media_type="application/json")
