"""The commands for dead letters, from a configuration to what is printed."""

from __future__ import annotations

import json
import re
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import typer

from headrace.core.clock import Deadline
from headrace.core.errors import UsageError
from headrace.core.letter_headers import REPLAYED_HEADER, code_of, letter_origin
from headrace.core.positions import format_moment
from headrace.core.records import ResultRecord, TopicPartition, offset_of
from headrace.extensions.keyed.names import REKEY_SUFFIX
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.clients import client_properties
from headrace.kafka.dead_letters import LetterReplay, replay_group
from headrace.kafka.errors import ProduceError
from headrace.kafka.source import read_log
from headrace.ops.admin.redaction import Redaction
from headrace.ops.console import Column, figures, numeric, print_table
from headrace.ops.offsets.commands import channel_name
from headrace.ops.offsets.reader import ANSWER_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headrace.config import Config
    from headrace.core.letter_headers import LetterOrigin
    from headrace.core.records import Record
    from headrace.kafka.dead_letters import ReplayProgress
    from headrace.kafka.ports import TopicInfo
    from headrace.ops.offsets.reader import TopicSelection

#: Letters that are replayed in one transaction.
_TRANSACTION = 500

#: Characters of an error's message, of a key and of a value that a table shows.
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class LetterTopic:
    """A dead-letter topic, and the groups whose letters in it are meant; None: all.

    ``redaction`` says what is not shown of the records.
    """

    topic: str
    groups: frozenset[str] | None
    properties: Mapping[str, Any]
    redaction: Redaction

    @classmethod
    def of(cls, config: Config, channel: str | None, topic: str | None) -> LetterTopic:
        """Return the topic that is named, or that of the channel that is meant.

        Raises:
            UsageError: no channel has one, or several have and none was named.
        """
        properties = dict(client_properties(config.kafka))
        redaction = Redaction(config.admin.redact)
        if topic is not None:
            return cls(topic, None, properties, redaction)
        having = {
            name: topic
            for name, each in config.channels.items()
            if (topic := each.rejects.topic) is not None
        }
        own = {_own(config, name) for name in having}
        name = own.pop() if channel is None and len(own) == 1 else channel_name(config, channel)
        if name not in having:
            raise UsageError(
                f"channel {name} has no dead-letter topic (rejects.topic); "
                + (f"choose from {', '.join(having)}, or " if having else "")
                + "name one with --dead-letter-topic"
            )
        # letters of a channel and of its re-key channel are in one topic
        both = [each for each in having if _own(config, each) == _own(config, name)]
        groups = frozenset(config.channels[each].group for each in both)
        return cls(having[name], groups, properties, redaction)


def _own(config: Config, name: str) -> str:
    """Return the channel that a re-key channel was made for, of any other itself."""
    own, channels = name.removesuffix(REKEY_SUFFIX), config.channels
    is_made = own in channels and channels[name].group == f"{channels[own].group}{REKEY_SUFFIX}"
    return own if is_made else name


_LETTER = re.compile("([0-9]{1,9}):([0-9]{1,19})")
_OFFSETS = re.compile("([0-9]{1,19})(?:-([0-9]{1,19}))?")


def parse_letter(text: str) -> tuple[int, int]:
    """Return what one ``--letter`` names.

    Raises:
        ValueError: it is not of that form.
    """
    match = _LETTER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not PARTITION:OFFSET, as in 0:1200")
    return int(match[1]), int(match[2])


def parse_offsets(text: str) -> range:
    """Return the offsets that ``--offset`` names, both ends included.

    Raises:
        ValueError: it is not of that form.
    """
    match = _OFFSETS.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an offset or two, as in 1200 or 1200-1299")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


class LetterState(Enum):
    """The outcome of a replay for a letter."""

    PENDING = "pending"
    """It would be replayed."""
    REPLAYED = "replayed"
    """It was replayed."""
    DUPLICATE = "duplicate"
    """An earlier letter is of the same record."""
    NO_RECORD = "no record"
    """It does not say of which topic it is: a timer failed, or it is no dead letter."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A record of a dead-letter topic."""

    partition: int
    record: Record
    origin: LetterOrigin
    state: LetterState

    @property
    def offset(self) -> int:
        """Return where in its partition it is."""
        return offset_of(self.record)

    @property
    def time(self) -> int:
        """Return when it was stored, in milliseconds since the epoch."""
        return self.record.timestamp()[1]

    def place(self) -> tuple[str, str, int, int]:
        """Return where its record was, to sort by."""
        at = self.origin
        return at.topic or "", at.topic_id or "", at.partition or 0, at.offset or 0

    def document(self, redaction: Redaction, *, values: bool) -> dict[str, Any]:
        """Return it for scripts; null where the letter does not say."""
        origin, value = self.origin, self.record.value()
        found: dict[str, Any] = {
            "letter": f"{self.partition}:{self.offset}",
            "time": format_moment(max(0, self.time)),
            "state": self.state.value.replace(" ", "_"),
            "topic": origin.topic,
            "partition": origin.partition,
            "offset": origin.offset,
            "topic_id": origin.topic_id,
            "group": origin.group,
            "record_time": None
            if origin.timestamp is None or origin.timestamp < 0
            else format_moment(origin.timestamp),
            "error": origin.error,
            "message": origin.message,
            "attempts": origin.attempt,
            "replays": origin.replays,
            "timer": origin.timer,
            **_bytes("key", redaction.key(self.record.key())),
            "value_bytes": None if value is None else len(value),
            "headers": [[name, _text(data)] for name, data in redaction.headers(origin.headers)],
        }
        return {**found, **_bytes("value", redaction.value(value))} if values else found


def _bytes(name: str, data: bytes | None) -> dict[str, Any]:
    """Return bytes as text, or in hexadecimal digits where they are none."""
    try:
        return {name: None if data is None else data.decode(), f"{name}_hex": None}
    except UnicodeDecodeError:
        return {name: None, f"{name}_hex": (data or b"").hex()}


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """The letters that are meant; what is empty or None leaves none out.

    ``since`` and ``until`` are in milliseconds, and times of letters; the others are of the
    records' origins.
    """

    letters: frozenset[tuple[int, int]] = frozenset()
    topics: tuple[TopicSelection, ...] = ()
    offsets: range | None = None
    reason: str | None = None
    since: int | None = None
    until: int | None = None

    def fits(self, letter: Letter) -> bool:
        """Return whether a letter is meant."""
        origin = letter.origin
        why = f"{origin.error or ''}: {origin.message or ''}".lower()
        return (
            (not self.letters or (letter.partition, letter.offset) in self.letters)
            and (not self.topics or any(_is_of(origin, each) for each in self.topics))
            and (self.offsets is None or origin.offset in self.offsets)
            and (self.reason is None or self.reason.lower() in why)
            and (self.since is None or letter.time >= self.since)
            and (self.until is None or letter.time < self.until)
        )


def _is_of(origin: LetterOrigin, choice: TopicSelection) -> bool:
    numbers = choice.numbers
    return origin.topic == choice.topic and (numbers is None or origin.partition in numbers)


class _LetterReader:
    """One reading of a dead-letter topic.

    ``pending`` has by partition and group the offsets of letters that were read and not replayed.
    """

    def __init__(self, of: LetterTopic, catalog: KafkaTopicCatalog, replay: LetterReplay) -> None:
        self.replay = replay
        self.catalog = catalog
        self.pending: dict[int, dict[str, list[int]]] = {}
        self.progress: dict[int, ReplayProgress] = {}
        self.of_others = 0
        self._of = of
        self._alike: dict[tuple[object, ...], list[tuple[int, int]]] = {}

    def letters(self, *, again: bool = False) -> Iterator[Letter]:
        """Yield the letters of this channel, partition after partition."""
        topic = self._of.topic
        info = self.described(topic)
        self.progress = self.replay.progress(range(info.partitions))
        group = replay_group(topic)
        for number in range(info.partitions):
            partition = TopicPartition(topic, number)
            low, high = self.catalog.watermarks(partition, Deadline.after(ANSWER_TIMEOUT))
            for record in read_log(self._of.properties, group, partition, low, high):
                origin = letter_origin(record.headers())
                if self._of.groups is not None and origin.group not in {None, *self._of.groups}:
                    self.of_others += 1
                    continue
                yield Letter(number, record, origin, self._state(number, record, origin, again))

    def described(self, topic: str) -> TopicInfo:
        """Return what there is of a topic.

        Raises:
            UsageError: there is no such topic.
        """
        found = self.catalog.describe([topic], Deadline.after(ANSWER_TIMEOUT))
        if topic not in found:
            raise UsageError(f"topic {topic} does not exist on the brokers")
        return found[topic]

    def _state(self, number: int, record: Record, origin: LetterOrigin, again: bool) -> LetterState:
        identity = _identity(record, origin)
        if identity is None:
            return LetterState.NO_RECORD
        offset, group = offset_of(record), origin.group or ""
        alike = self._alike.setdefault(identity, [])
        alike.append((number, offset))
        is_done = any(at in self.progress[n].of_group(group) for n, at in (alike[0], alike[-1]))
        if not is_done:
            self.pending.setdefault(number, {}).setdefault(group, []).append(offset)
        if len(alike) > 1:
            return LetterState.DUPLICATE
        return LetterState.REPLAYED if is_done and not again else LetterState.PENDING

    def places(self, letter: Letter) -> Sequence[tuple[int, int]]:
        """Return the partitions and offsets of all letters that are of a letter's record."""
        identity = _identity(letter.record, letter.origin)
        return () if identity is None else self._alike[identity]


def _identity(record: Record, origin: LetterOrigin) -> tuple[object, ...] | None:
    # the same content, too: Kafka Connect's names do not tell a topic that was created again
    named = origin.identity
    return None if named is None else (*named, hash((record.key(), record.value())))


@contextmanager
def _reader(of: LetterTopic) -> Iterator[_LetterReader]:
    group = replay_group(of.topic)
    with closing(KafkaTopicCatalog(of.properties, group)) as catalog:
        found = catalog.describe([of.topic], Deadline.after(ANSWER_TIMEOUT))
        if of.topic not in found:
            raise UsageError(
                f"the dead-letter topic {of.topic} does not exist on the brokers; create it"
            )
        topic_id = found[of.topic].topic_id
        yield _LetterReader(of, catalog, LetterReplay(of.properties, of.topic, topic_id))


def list_letters(
    of: LetterTopic,
    wanted: LetterFilter,
    limit: int,
    *,
    pending: bool,
    values: bool,
    by_error: bool,
    as_json: bool,
) -> None:
    """Print the letters that are meant, ``limit`` of them at most; or all, counted by error."""
    with _reader(of) as reader:
        found = (
            each
            for each in reader.letters()
            if wanted.fits(each) and not (pending and each.state is not LetterState.PENDING)
        )
        if by_error:
            _print_errors(found, as_json=as_json)
        else:
            _print(islice(found, limit), of.redaction, values=values, as_json=as_json)
        if next(found, None) is not None:
            typer.echo(f"there are more; say --limit, which is {limit}, or a filter", err=True)
        _say_others(reader)


def _say_others(reader: _LetterReader) -> None:
    if reader.of_others:
        typer.echo(
            f"{reader.of_others} letters of other groups in the topic are left out; "
            "--dead-letter-topic has all of it",
            err=True,
        )


def _print(letters: Iterable[Letter], redaction: Redaction, *, values: bool, as_json: bool) -> None:
    if as_json:
        for letter in letters:
            typer.echo(json.dumps(letter.document(redaction, values=values)))
        return
    columns: list[Column[Letter]] = [
        Column("letter", lambda each: f"{each.partition}:{each.offset}"),
        Column("time", lambda each: format_moment(max(0, each.time))),
        Column("state", lambda each: each.state.value),
        Column("from", lambda each: _format_place(each.origin)),
        Column("key", lambda each: _short(redaction.key(each.record.key()))),
        numeric("attempts", lambda each: each.origin.attempt),
        Column("error", lambda each: each.origin.error or "-"),
        Column("message", lambda each: _one_line(each.origin.message or each.origin.timer or "-")),
    ]
    if values:
        columns.append(Column("value", lambda each: _short(redaction.value(each.record.value()))))
    print_table(letters, columns, empty="no letters")


def _format_place(origin: LetterOrigin) -> str:
    place = "-" if origin.topic is None else f"{origin.topic}-{origin.partition}"
    return place if origin.offset is None else f"{place}:{origin.offset}"


@dataclass(slots=True)
class _Alike:
    """Letters of one kind of error: how many, how many are pending, and which is the last."""

    letters: int = 0
    pending: int = 0
    last: Letter | None = None

    def add(self, letter: Letter) -> None:
        """Count one."""
        self.letters += 1
        self.pending += letter.state is LetterState.PENDING
        if self.last is None or letter.time >= self.last.time:
            self.last = letter


def _print_errors(letters: Iterable[Letter], *, as_json: bool) -> None:
    """Print how many letters there are of each kind of error, most first."""
    found: dict[str, _Alike] = {}
    for letter in letters:
        found.setdefault(error_kind(letter.origin), _Alike()).add(letter)
    kinds = [
        {
            "error": kind,
            "letters": alike.letters,
            "pending": alike.pending,
            "last": _summary(alike.last),
        }
        for kind, alike in sorted(found.items(), key=lambda each: (-each[1].letters, each[0]))
    ]
    if as_json:
        for document in kinds:
            typer.echo(json.dumps(document))
    else:
        print_table(kinds, _KINDS, empty="no letters")


def _summary(letter: Letter | None) -> dict[str, str | None]:
    assert letter is not None, "each kind has a letter"
    return {
        "letter": f"{letter.partition}:{letter.offset}",
        "time": format_moment(max(0, letter.time)),
        "message": letter.origin.message,
    }


_KINDS: tuple[Column[dict[str, Any]], ...] = (
    Column("error", itemgetter("error")),
    *figures(letters="letters", pending="pending"),
    Column("last", lambda each: each["last"]["time"]),
    Column("letter", lambda each: each["last"]["letter"]),
    Column("message", lambda each: _one_line(each["last"]["message"] or "-")),
)


def error_kind(origin: LetterOrigin) -> str:
    """Return what letters are grouped by: the error's class, and the code in its message."""
    error = origin.error or ("a timer" if origin.timer else "-")
    code = code_of(origin.message)
    return error if code is None else f"{error} [{code}]"


def _short(data: bytes | None) -> str:
    return "-" if data is None else _one_line(_text(data) or "")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


# --- replay --------------------------------------------------------------------------------------


def replay(
    of: LetterTopic,
    wanted: LetterFilter,
    limit: int,
    to: str | None,
    *,
    again: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Produce the records of the letters that are meant again, each at most once.

    Raises:
        UsageError: a topic does not exist, or the answer was no; nothing was replayed.
        ProduceError: it was not done, or not all of it; the message says how much was.
    """
    with _reader(of) as reader:
        if not dry_run:
            # before what was replayed is read: another replay may be about to store more of it
            reader.replay.begin()
        fitting = (each for each in reader.letters(again=again) if wanted.fits(each))
        pending = (each for each in fitting if each.state is LetterState.PENDING)
        chosen = list(islice(pending, limit))
        is_more = next(pending, None) is not None
        # to the end: what was replayed is told by all letters that there are
        for _ in pending:
            pass
        # the order of the records in their topics, which letters by key need not be in
        chosen.sort(key=Letter.place)
        plan = _Plan.of(reader, of.topic, chosen, to)
        if not as_json:
            plan.show()
        if is_more:
            typer.echo(f"there are more; say --limit, which is {limit}, or run it again", err=True)
        _say_others(reader)
        if chosen and not dry_run:
            if not yes and not typer.confirm(f"Replay {len(chosen)} letters of {of.topic}?"):
                raise UsageError("nothing was replayed")
            _replay(reader, chosen, plan)
    if as_json:
        typer.echo(json.dumps(plan.document(is_done=not dry_run)))
    elif chosen and not dry_run:
        typer.echo(f"{len(chosen)} letters replayed")


def _replay(reader: _LetterReader, chosen: Sequence[Letter], plan: _Plan) -> None:
    progress = dict(reader.progress)
    for start in range(0, len(chosen), _TRANSACTION):
        some = chosen[start : start + _TRANSACTION]
        done: dict[int, dict[str, list[int]]] = {}
        for each in some:
            for number, offset in reader.places(each):
                groups = done.setdefault(number, {})
                groups.setdefault(each.origin.group or "", []).append(offset)
        moved = {
            number: progress[number].after(offsets, reader.pending.get(number, {}))
            for number, offsets in done.items()
        }
        try:
            reader.replay.commit([plan.record(each) for each in some], moved)
        except ProduceError as error:
            raise ProduceError(
                f"{error}; {start} of {len(chosen)} letters were replayed before that; run the "
                "command again, which goes on with those that were not"
            ) from error
        progress |= moved


@dataclass(frozen=True, slots=True)
class _Plan:
    """The topics that letters go to. ``partitions`` has how many each topic has."""

    topic: str
    to: str | None
    partitions: Mapping[str, int]
    counts: Mapping[TopicPartition, int]

    @classmethod
    def of(
        cls, reader: _LetterReader, topic: str, chosen: Sequence[Letter], to: str | None
    ) -> _Plan:
        """Return where letters go.

        Raises:
            UsageError: one of these topics does not exist, or is the dead-letter topic.
        """
        named = {to or str(each.origin.topic) for each in chosen}
        if to == topic:
            raise UsageError(f"--to {to} is the dead-letter topic itself; name another one")
        found = reader.catalog.describe(named, Deadline.after(ANSWER_TIMEOUT))
        missing = [
            f"topic {each}, which letters came from, does not exist any more; name another one "
            "with --to, or leave these letters out with --topic"
            if to is None
            else f"topic {each} does not exist on the brokers; create it, or name another --to"
            for each in sorted(named - found.keys())
        ]
        if missing:
            raise UsageError(*missing)
        counts: dict[TopicPartition, int] = {}
        for each in chosen:
            place = TopicPartition(str(each.origin.topic), each.origin.partition or 0)
            counts[place] = counts.get(place, 0) + 1
        sizes = {name: info.partitions for name, info in found.items()}
        return cls(topic, to, sizes, counts)

    def record(self, letter: Letter) -> ResultRecord:
        """Return what is produced of a letter: the record as it was, and where it was meanwhile."""
        origin = letter.origin
        topic = self.to or str(origin.topic)
        number = origin.partition if self.to is None else None
        if number is not None and number >= self.partitions[topic]:
            number = None
        named = f"{self.topic}:{letter.partition}:{letter.offset}"
        time = letter.time if origin.timestamp is None else origin.timestamp
        return ResultRecord(
            topic,
            letter.record.value(),
            letter.record.key(),
            [*origin.headers, (REPLAYED_HEADER, named.encode())],
            number,
            time if time > 0 else None,
        )

    def document(self, *, is_done: bool) -> dict[str, Any]:
        """Return it for scripts."""
        return {
            "dead_letter_topic": self.topic,
            "to": self.to,
            "replayed": is_done,
            "letters": sum(self.counts.values()),
            "from": [
                {"topic": place.topic, "partition": place.partition, "letters": count}
                for place, count in sorted(self.counts.items())
            ],
        }

    def show(self) -> None:
        """Print how many letters of each partition go where."""
        if not self.counts:
            typer.echo("no letters to be replayed")
            return
        columns: tuple[Column[tuple[TopicPartition, int]], ...] = (
            Column("from", itemgetter(0)),
            Column("to", lambda each: self.to or each[0]),
            numeric("letters", itemgetter(1)),
        )
        print_table(sorted(self.counts.items()), columns)
