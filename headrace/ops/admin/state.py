"""Documents and endpoints of the state that a channel keeps by key."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast
from urllib.parse import quote, urlencode

from fastapi import Path, Query

from headrace.coordinators.group_nodes import read_nodes
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.codecs import DECODERS, partition_of
from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.keyed.section import StateProcessorConfig
from headrace.ops.admin import models as d
from headrace.ops.admin.document import (
    Document,
    Number,
    Offset,
    SendableText,
    moment,
    restoring,
    sendable,
)
from headrace.ops.admin.key_paths import place_of_key
from headrace.ops.admin.models import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.coordinators.group_nodes import GroupNodes
    from headrace.extensions.keyed.row import KeyRow
    from headrace.extensions.keyed.standby_reader import StandbyProgress
    from headrace.extensions.keyed.state import Progress
    from headrace.extensions.keyed.state_reader import (
        FoundKey,
        StatePartition,
        StateReader,
    )
    from headrace.ops.admin.ports import Controller

#: Keys of one page, at most.
MOST_KEYS = 1000

#: Members that may lead to each other for one question. While a partition moves, each may believe
#: that another one has it.
MOST_LED = 3


class TimerStatus(Document):
    """A timer of a key."""

    name: SendableText
    """Its name."""
    due: datetime
    """The time at which it fires."""
    clock: str
    """The clock of that time: event or clock."""


class KeyedState(Document):
    """A key and its state, as committed."""

    key: SendableText
    """The key; where its bytes are no UTF-8, or the channel's keys are bytes, in hexadecimal
    digits."""
    hex: bool
    """True if key is in hexadecimal digits."""
    partition: Number
    """Its partition's number."""
    state: Any
    """Its state: what JSON decodes to, text, or bytes in base64, as the channel's encoding is."""
    timers: list[TimerStatus]
    """Its timers, by name."""
    quarantined: SendableText | None
    """The reason why its facts are rejected; null: they are not."""
    problem: SendableText | None
    """The reason why its state, in base64 then, cannot be decoded; null: it can."""
    stream_time: datetime | None
    """The stream time of its partition."""
    offset: Offset | None
    """The state is of exactly the records of its partition before this offset; null where the
    channel reads several topics."""
    offsets: dict[str, Offset]
    """The same for each topic."""
    restored: bool
    """True if all of the partition's state is there, false of a copy. What is not restored is not
    shown."""
    standby: d.StandbyStatus | None
    """The copy that the state is of, and how far it is behind; null: it is the owner's."""


class RestoringPartition(Document):
    """A partition whose state is not there yet."""

    partition: Number
    """Its number."""
    progress: d.RestoreStatus
    """The progress of restoring it."""


class KeysPage(Document):
    """Keys with their states."""

    channel: str
    """The channel."""
    keys: list[KeyedState]
    """The keys, by partition, and within one by their bytes."""
    next: str | None
    """The value of after for the next page; null: there is none."""
    restoring: list[RestoringPartition]
    """Partitions of this process that are not in it, because their state is not there yet."""
    elsewhere: Number
    """Partitions of the channel's topics that this process does not have."""


class Task(Document):
    """The state of one partition."""

    topic: str
    """The topic."""
    partition: Number
    """Its number."""
    restored: bool
    """True if all of its state is there."""
    restoring: d.RestoreStatus | None
    """The progress of restoring it; null: it is restored."""
    rows: Number | None
    """Keys that have a row; null while they are counted, some moments after restoring."""
    bytes: Number | None
    """Bytes of keys and rows."""
    timers: Number | None
    """Timers, those of ttl among them."""
    quarantined: Number | None
    """Keys in quarantine, whose facts are rejected."""
    offset: Offset | None
    """The state is of exactly the records before this offset; null where the channel reads several
    topics."""
    offsets: dict[str, Offset]
    """The same for each topic."""
    commits: Number
    """The number of commits that made it."""
    stream_time: datetime | None
    """The latest time of a record so far."""


class Tasks(Document):
    """The partitions of a channel with state that this process has."""

    channel: str
    """The channel."""
    tasks: list[Task]
    """The partitions, by number."""
    standbys: list[d.StandbyStatus]
    """The copies of other members' partitions that this process keeps, by number."""


KeyParameter = Annotated[
    str, Path(description="The key, as its text or, with hex, its bytes' digits.")
]
OnePartition = Annotated[
    int | None, Query(ge=0, le=1 << 31, description="Only this partition; null: all that are here.")
]
Hex = Annotated[
    bool,
    Query(
        alias="hex",
        description="Keys are given in hexadecimal digits; always so with keys: bytes.",
    ),
]
Led = Annotated[
    int, Query(ge=0, le=100, description="The number of members that have led to this one.")
]
StaleState = Annotated[
    bool,
    Query(
        alias="stale",
        description="A copy of the partition may answer where its owner is not here: standby has "
        "how far it is behind. A member without one leads to the owner, or to a copy where there "
        "is none.",
    ),
]
Prefix = Annotated[str, Query(description="Only keys with this prefix.")]
Limit = Annotated[int, Query(ge=1, le=MOST_KEYS, description="Keys of the page at most.")]
After = Annotated[
    str | None, Query(description="What next of the page before said; null: from the first key on.")
]

_FIRST = datetime(1, 1, 1, tzinfo=UTC).timestamp()


class StateReads:
    """The endpoints of state. Every method may block."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def key(
        self,
        channel: InboundKafkaChannel,
        key: str,
        *,
        is_hex: bool,
        partition: int | None,
        stale: bool,
        led: int,
    ) -> KeyedState:
        """Return a key.

        Raises:
            ApiError: it has no state, it is in several partitions, its partition is not restored,
                or it is another member's.
            HeadraceError: the store cannot be read, or ZooKeeper did not answer.
        """
        reader, config = reader_of(channel), _processor_of(channel)
        name = _bytes_of(key, config, is_hex=is_hex)
        held = {each.partition: each for each in reader.partitions()}
        found = reader.find(name, partition)
        if len(found) > 1:
            numbers = ", ".join(str(each.partition) for each in found)
            raise ApiError(
                HTTPStatus.CONFLICT,
                "key_in_several_partitions",
                f"key {key} is in partitions {numbers}",
                value=key,
                next_step="choose one with partition",
            )
        if not found:
            # what was given up meanwhile was not looked into, nor what was restored
            ready = {each.partition for each in reader.partitions() if each.restoring is None}
            held = {
                number: each
                for number, each in held.items()
                if each.restoring is not None or number in ready
            }
            number = partition if partition is not None else _expected_in(channel, name)
            if stale and number is not None and number not in held:
                copied = _find_copied(reader, name, number)
                if copied is not None:
                    row, progress = copied
                    if row is None:
                        raise _absent(channel, key, number, of_copy=True)
                    return _described(name, number, row, config, progress)
            said = {"hex": is_hex, "stale": stale}
            query = dict.fromkeys((each for each, is_said in said.items() if is_said), "true")
            raise self._not_found_error(channel, key, number, held, {**query, "led": str(led)})
        return described_key(found[0], config)

    def page(
        self,
        channel: InboundKafkaChannel,
        *,
        prefix: str,
        limit: int,
        after: str | None,
        partition: int | None,
        is_hex: bool,
    ) -> KeysPage:
        """Return a page of keys. Raises as :meth:`key`."""
        reader, config = reader_of(channel), _processor_of(channel)
        begin = _bytes_of(prefix, config, is_hex=is_hex)
        found = reader.page(begin, read_cursor(after), limit + 1, partition)
        shown, more = found[:limit], found[limit:]
        held = reader.partitions()
        return KeysPage(
            channel=channel.name,
            keys=[described_key(each, config) for each in shown],
            next=f"{shown[-1].partition}:{shown[-1].key.hex()}" if more else None,
            restoring=[
                RestoringPartition(partition=each.partition, progress=progress)
                for each in held
                if (progress := restore_status(each)) is not None
            ],
            elsewhere=max(0, channel.topics.get(channel.config.topics[0], 0) - len(held)),
        )

    def tasks(self, channel: InboundKafkaChannel) -> Tasks:
        """Return where the state of each partition stands. Raises as :meth:`key`."""
        topic, reader = channel.config.topics[0], reader_of(channel)
        return Tasks(
            channel=channel.name,
            tasks=[_task(topic, each) for each in reader.partitions()],
            standbys=[standby_status(*each) for each in reader.standbys()],
        )

    def _not_found_error(
        self,
        channel: InboundKafkaChannel,
        key: str,
        number: int | None,
        held: Mapping[int, StatePartition],
        query: Mapping[str, str],
    ) -> ApiError:
        """Return why there is nothing to show of a key here; ``number`` is where it has to be."""
        if number is None:
            # the same key is in every partition
            waiting = [each for each in held.values() if each.restoring is not None]
            return restoring_error(channel, waiting[0]) if waiting else _absent(channel, key, None)
        if number not in held:
            return self._elsewhere(channel, key, number, query)
        if held[number].restoring is not None:
            return restoring_error(channel, held[number])
        return _absent(channel, key, number)

    def _elsewhere(
        self, channel: InboundKafkaChannel, key: str, number: int, said: Mapping[str, str]
    ) -> ApiError:
        if number >= channel.topics.get(channel.config.topics[0], number + 1):
            return _absent(channel, key, number)
        place, named = place_of_key(key)
        path = f"/api/v1/channels/{quote(channel.name, safe='')}/state/{place}"
        query = {**said, **named}
        led = int(query.pop("led"))
        what = Asked(f"key {key}", key, path, query, stale="stale" in query, led=led)
        return held_elsewhere(self._controller, channel, number, what)


class Asked(NamedTuple):
    """A question to a partition: in words, the value that names it, and the request.

    ``stale``: a copy may answer it, too. ``led`` members have led to this one.
    """

    what: str
    value: str
    path: str
    query: Mapping[str, str]
    stale: bool = False
    led: int = 0


def held_elsewhere(
    controller: Controller, channel: InboundKafkaChannel, number: int, asked: Asked
) -> ApiError:
    """Return what leads to the member that has a partition. Blocks for ZooKeeper.

    Raises:
        HeadraceError: ZooKeeper did not answer.
    """
    partition = TopicPartition(channel.config.topics[0], number)
    if asked.led >= MOST_LED:
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "not_owned",
            f"{asked.led} members led to each other for {asked.what} in {partition}, and none of "
            "them has it now",
            value=asked.value,
            next_step="ask again in some seconds, when they know who has it; headrace status shows "
            "who owns what",
            headers={"Retry-After": "1"},
        )
    nodes = read_nodes(controller.session, channel.config.group, [partition.topic])
    owner, own = nodes.owner_names.get(partition), controller.config.instance_id
    if not owner or owner == own:
        if asked.stale and (copy := _find_copy(nodes, number, besides=own)) is not None:
            taker, place = copy
            said = f"{asked.what} is in {partition}, of which member {taker} has a copy at {place}"
            return _led_to(place, said, number, asked)
        return ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "not_owned",
            f"{partition}, where {asked.what} is, has no owner at this moment",
            value=asked.value,
            next_step="ask again in some seconds; headrace status shows who owns what",
            headers={"Retry-After": "1"},
        )
    member = nodes.members.get(owner)
    url = None if member is None or member.document is None else member.document.admin
    if url is None:
        return ApiError(
            HTTPStatus.MISDIRECTED_REQUEST,
            "held_elsewhere",
            f"{asked.what} is in {partition}, which member {owner} has",
            value=asked.value,
            next_step=f"ask {owner}'s own API: it is not reached from other machines (its "
            "admin.host is loopback, without admin.advertised_url, or its version publishes no "
            "address)",
        )
    said = f"{asked.what} is in {partition}, which member {owner} has at {url}"
    return _led_to(url, said, number, asked)


def _led_to(url: str, said: str, number: int, asked: Asked) -> ApiError:
    query = urlencode({"partition": number, **asked.query, "led": asked.led + 1})
    return ApiError(
        HTTPStatus.TEMPORARY_REDIRECT,
        "held_elsewhere",
        said,
        value=asked.value,
        next_step=f"ask {url}, with its own token",
        headers={"Location": f"{url}{asked.path}?{query}"},
    )


def _find_copy(nodes: GroupNodes, number: int, besides: str) -> tuple[str, str] | None:
    """Return the name of another member that is warm for a partition, and where its API is."""
    for name, node in sorted(nodes.members.items()):
        document = node.document
        if document is None or document.admin is None or name == besides:
            continue
        if number in (document.info.warm or ()):
            return name, document.admin
    return None


def state_reader_of(channel: InboundKafkaChannel) -> StateReader | None:
    """Return what reads a channel's state; channels with state have no other view of it."""
    return cast("StateReader | None", channel.state_reader)


def reader_of(channel: InboundKafkaChannel) -> StateReader:
    """Return what reads a channel's state.

    Raises:
        ApiError: it keeps none.
    """
    reader = state_reader_of(channel)
    if reader is None:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            "no_state",
            f"channel {channel.name} keeps no state: its processor is of type "
            f"{channel.config.processor.type}",
            value=channel.name,
            next_step="ask for a channel whose processor is keyed",
        )
    return reader


def _processor_of(channel: InboundKafkaChannel) -> StateProcessorConfig:
    chosen = channel.config.processor
    assert isinstance(chosen, StateProcessorConfig), "others have no reader"
    return chosen


def _bytes_of(key: str, config: StateProcessorConfig, *, is_hex: bool) -> bytes:
    """Return a key's bytes, of what a request says.

    Raises:
        ApiError: it is to be in hexadecimal digits, and is not.
    """
    if not is_hex and config.shows_keys_as_text:
        return key.encode("utf-8", "surrogateescape")
    return bytes_of_digits(key)


def bytes_of_digits(key: str) -> bytes:
    """Return the bytes of a key that a request names by their digits.

    Raises:
        ApiError: they are none.
    """
    try:
        return bytes.fromhex(key)
    except ValueError as error:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid_key",
            f"{key} is not in hexadecimal digits, two for each byte",
            value=key,
            next_step="give the key's bytes as in 6b6579, for key",
        ) from error


def read_cursor(after: str | None) -> tuple[int, bytes] | None:
    """Return the partition and the key that the next of a page names, None without any.

    Raises:
        ApiError: it is not the next of a page.
    """
    if after is None:
        return None
    number, colon, name = after.partition(":")
    try:
        if not colon or not number.isdecimal():
            raise ValueError(after)  # noqa: TRY301 - told as those of fromhex
        return int(number), bytes.fromhex(name)
    except ValueError as error:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid_after",
            f"{after} is not the next of a page",
            value=after,
            next_step="give next as the page before has it, or leave after out",
        ) from error


def _expected_in(channel: InboundKafkaChannel, key: bytes) -> int | None:
    """Return the partition in which a key has to be, None where it is in each, or in any."""
    config = _processor_of(channel)
    match config.row_keys:
        case "constant" | "store":
            # a row of a store is named by it, and lies where its record's key does
            return None
        case "partition":
            return int(key) if key.isdigit() else None
    count = channel.topics.get(channel.config.topics[0], 0)
    return partition_of(key, count) if count else None


def _find_copied(
    reader: StateReader, key: bytes, number: int
) -> tuple[KeyRow | None, StandbyProgress] | None:
    """Return the row of a key in the copy of a partition; None: there is no copy to rely on."""
    copies = reader.copies
    if copies is None or number not in copies.readable():
        return None
    try:
        with copies.reading(number) as rows:
            return rows.find(key), cast("StandbyProgress", rows.progress)
    except StateStoreError:
        # it was put off since then: another member may have the row
        return None


def _absent(
    channel: InboundKafkaChannel, key: str, number: int | None, *, of_copy: bool = False
) -> ApiError:
    if _processor_of(channel).row_keys == "store":
        return ApiError(
            HTTPStatus.NOT_FOUND,
            "unknown_key",
            f"channel {channel.name} has no row {key} in the partitions of this process",
            value=key,
            next_step="headrace streams rows TOPOLOGY STORE KEY finds rows by keys. Here it is "
            "STORE/KEY, that of a window STORE/BEGIN/KEY, of a session or a sliding window "
            "STORE/END/BEGIN/KEY, with 19 digits for a time; headrace state list shows what there "
            "is. Other members have other partitions",
        )
    place = "" if number is None else f"; it would be in partition {number}"
    place += ", of which a copy is here" if of_copy else ""
    return ApiError(
        HTTPStatus.NOT_FOUND,
        "unknown_key",
        f"channel {channel.name} has no state of key {key}{place}",
        value=key,
        next_step="headrace state list shows the channel's keys. Producers that do not partition "
        "as Kafka's own put keys elsewhere: name the partition",
    )


def restoring_error(channel: InboundKafkaChannel, held: StatePartition) -> ApiError:
    """Return what is said of a partition whose state is not there yet."""
    status = restore_status(held)
    assert status is not None, "it is not there yet"
    wait = 1 if status.left_s is None else max(1, round(status.left_s))
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "restoring",
        f"{channel.config.topics[0]}-{held.partition}: {restoring(status.percent, status.left_s)}",
        value=str(held.partition),
        next_step="ask again when its state is there; .../tasks shows how far it is",
        headers={"Retry-After": str(wait)},
    )


def restore_status(held: StatePartition) -> d.RestoreStatus | None:
    """Return how far a partition is, None where its state is there."""
    progress = held.restoring
    if progress is None:
        return None
    done, total, left = progress
    percent = None if total is None else 100 * done / total if total else 100.0
    return d.RestoreStatus(
        done=done,
        total=total,
        percent=None if percent is None else round(percent, 1),
        left_s=None if left is None else round(left, 1),
    )


def standby_status(number: int, progress: StandbyProgress) -> d.StandbyStatus:
    """Return a copy of another member's partition as documents have it."""
    position, lag, problem = progress
    return d.StandbyStatus(partition=number, position=position, lag=lag, problem=problem)


def _task(topic: str, each: StatePartition) -> Task:
    progress, size = each.progress, each.size
    return Task(
        topic=topic,
        partition=each.partition,
        restored=each.restoring is None,
        restoring=restore_status(each),
        rows=None if size is None else size.rows,
        bytes=None if size is None else size.bytes,
        timers=None if size is None else size.timers,
        quarantined=None if size is None else size.quarantined,
        offset=_offset_of(progress),
        offsets=dict(each.offsets),
        commits=progress.number,
        stream_time=time_of(progress.time),
    )


def _offset_of(progress: Progress) -> int | None:
    """Return the offset of a state of one topic; None of several, and without any."""
    return progress.offset if len(progress.offsets) <= 1 else None


def described_key(found: FoundKey, config: StateProcessorConfig) -> KeyedState:
    """Return a key as the API has it."""
    state = _described(found.key, found.partition, found.row, config)
    placed = {
        "stream_time": time_of(found.progress.time),
        "offset": _offset_of(found.progress),
        "offsets": dict(found.offsets),
    }
    return state.model_copy(update=placed)


def _described(
    name: bytes,
    partition: int,
    row: KeyRow,
    config: StateProcessorConfig,
    copied: StandbyProgress | None = None,
) -> KeyedState:
    """Return a key without what it is of, but for how far the copy of its partition is."""
    key, is_hex = shown_key(name, config)
    state, problem = shown_state(row, config)
    return KeyedState(
        key=key,
        hex=is_hex,
        partition=partition,
        state=state,
        timers=[
            TimerStatus(name=name, due=time_of(timer.due), clock=timer.clock.value)
            for name, timer in sorted(row.timers.items())
        ],
        quarantined=row.quarantined,
        problem=problem,
        stream_time=None,
        offset=None,
        offsets={},
        restored=copied is None,
        standby=None if copied is None else standby_status(partition, copied),
    )


def shown_key(key: bytes, config: StateProcessorConfig) -> tuple[str, bool]:
    """Return a key as people see it, and whether that is in hexadecimal digits."""
    if config.shows_keys_as_text:
        try:
            return key.decode(), False
        except UnicodeDecodeError:
            pass
    return key.hex(), True


def shown_state(row: KeyRow, config: StateProcessorConfig) -> tuple[Any, str | None]:
    """Return a state as JSON can have it, and what is wrong with it, if something is."""
    if row.state is None:
        return None, None
    try:
        state = DECODERS[config.row_encoding](row.state)
    except ValueError as error:
        problem = f"it is not {config.row_encoding}: {error}"
        return base64.b64encode(row.state).decode(), problem
    return _plain(state), None


def _plain(value: Any) -> Any:
    """Return a decoded state as an answer can have it."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case str():
            return sendable(value)
        case list():
            return list(map(_plain, value))
        case dict():
            return {sendable(name): _plain(each) for name, each in value.items()}
    return value


def time_of(milliseconds: int | None) -> datetime | None:
    """Return a time as documents have it."""
    return None if milliseconds is None else moment(max(milliseconds / 1000, _FIRST))
