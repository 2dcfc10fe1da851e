"""The headers of dead letters, under our names and Kafka Connect's."""

from __future__ import annotations

import pytest

from headrace.core.errors import PoisonRecordError
from headrace.core.letter_headers import (
    MESSAGE_LENGTH,
    REPLAYED_HEADER,
    TRACEBACK_LENGTH,
    Failure,
    Header,
    LetterHeaders,
    Stage,
    full_name,
    letter_origin,
    read_letter,
    shortened,
)
from headrace.core.records import TopicPartition

SAID = {"topic": "events", "partition": "3", "offset": "17", "message": "cannot take it"}


def raised(error: Exception) -> Exception:
    """Return an error that was raised, with its traceback."""
    try:
        raise error
    except type(error) as caught:
        return caught


def failure(error: Exception | None = None) -> Failure:
    """Return why a record is set aside."""
    return Failure("cannot take it", error, Stage.VALUE, read_letter)


def test_kafka_connects_names_are_those_of_its_reporter() -> None:
    """The headers are those that Kafka Connect writes, with its texts."""
    found = LetterHeaders("connect", "group").of(SAID, failure(raised(ValueError("no"))))
    trace = dict(found)["__connect.errors.exception.stacktrace"].decode()
    assert found == [
        ("__connect.errors.topic", b"events"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"17"),
        ("__connect.errors.connector.name", b"group"),
        ("__connect.errors.task.id", b"3"),
        ("__connect.errors.stage", b"VALUE_CONVERTER"),
        ("__connect.errors.class.name", b"headrace.core.letter_headers.read_letter"),
        ("__connect.errors.exception.class.name", b"ValueError"),
        ("__connect.errors.exception.message", b"no"),
        ("__connect.errors.exception.stacktrace", trace.encode()),
    ]
    assert trace.startswith("Traceback")
    assert trace.endswith("ValueError: no\n")


def test_a_letter_without_an_exception_has_a_message_only() -> None:
    """A record without a key has no exception, and a timer's letter no place either."""
    said = {"partition": "3", "timer": "t", "message": "late"}
    found = dict(LetterHeaders("connect", "group").of(said, failure()))
    assert found["__connect.errors.exception.message"] == b"cannot take it"
    assert found["__connect.errors.task.id"] == b"3"
    absent = {"topic", "offset", "exception.class.name", "exception.stacktrace"}
    assert not {f"__connect.errors.{name}" for name in absent} & found.keys()


def test_headers_are_ours_by_default() -> None:
    """Under our prefix, in the order in which they are said."""
    assert LetterHeaders().of(SAID, failure()) == [
        (f"headrace.{name}", text.encode()) for name, text in SAID.items()
    ]


@pytest.mark.parametrize("names", ["headrace", "connect"])
def test_a_letter_is_read_under_either_names(names: str) -> None:
    """Place and reason of a letter are found under each set of names."""
    headers = LetterHeaders(names, "group").of(SAID, failure())  # type: ignore[arg-type]
    own: list[tuple[str, bytes | None]] = [("topic", b"not this"), ("trace", None)]
    found = read_letter([*own, *headers])
    assert {name: found[name] for name in SAID} == SAID
    assert found.keys() - SAID.keys() == ({"group"} if names != "headrace" else set())


def test_the_last_headers_count_for_a_letter_of_a_letter() -> None:
    """A record from a dead-letter topic has its last place."""
    first = LetterHeaders("headrace").of(SAID, failure())
    second = LetterHeaders("headrace").of({**SAID, "offset": "4"}, failure())
    assert read_letter([*first, *second])["offset"] == "4"
    assert read_letter([("headrace-from", b"t/0/1"), ("a", None)]) == {}


@pytest.mark.parametrize("length", [0, MESSAGE_LENGTH, MESSAGE_LENGTH + 1, 50_000])
def test_messages_are_kept_short(length: int) -> None:
    """A long one keeps its beginning and its end, where the reason stands."""
    text = shortened("b" + "." * length + "e") if length else shortened("")
    assert len(text) <= MESSAGE_LENGTH
    assert not length or (text[0], text[-1]) == ("b", "e")


def test_a_traceback_is_kept_short() -> None:
    """The traceback of deep calls is cut, and ends with the error."""
    error = raised(ValueError("." * 50_000 + "end"))
    found = dict(LetterHeaders("connect").of(SAID, failure(error)))
    trace = found["__connect.errors.exception.stacktrace"].decode()
    assert len(trace) <= TRACEBACK_LENGTH
    assert trace.endswith("end\n")


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (ValueError, "ValueError"),
        (PoisonRecordError, "headrace.core.errors.PoisonRecordError"),
        (TopicPartition("t", 0), "headrace.core.records.TopicPartition"),
        (shortened, "headrace.core.letter_headers.shortened"),
    ],
)
def test_code_is_named_with_its_module(thing: object, name: str) -> None:
    """An object has its class's name with the module, and a built-in the name alone."""
    assert full_name(thing) == name


# --- reading -------------------------------------------------------------------------------------

OWN_HEADERS: list[Header] = [("a", b"1"), ("a", None)]


def ours_at(offset: int, topic: str = "t", **more: str) -> list[Header]:
    """Return headers as a channel writes them."""
    said = {
        "group": "g",
        "topic": topic,
        "topic_id": "id",
        "partition": "1",
        "offset": str(offset),
        "timestamp": "1700000000000",
        "error": "ValueError",
        "message": "no",
        "attempt": "5",
        **more,
    }
    return [(f"headrace.{name}", text.encode()) for name, text in said.items()]


def keyed_at(offset: int) -> list[Header]:
    """Return headers as a channel with state writes them."""
    said = {"topic": "k", "partition": "1", "offset": str(offset), "timestamp": "5", "message": "m"}
    return [(f"headrace.{name}", text.encode()) for name, text in said.items()]


def connect_at(offset: int, topic: str = "t") -> list[Header]:
    """Return headers as Kafka Connect writes them."""
    said = {
        "topic": topic,
        "partition": "1",
        "offset": str(offset),
        "connector.name": "g",
        "task.id": "0",
        "stage": "TASK_PUT",
        "class.name": "C",
        "exception.class.name": "java.lang.Error",
        "exception.message": "bad",
        "exception.stacktrace": "at",
    }
    return [(f"__connect.errors.{name}", text.encode()) for name, text in said.items()]


def test_a_letter_says_where_it_is_from_and_why() -> None:
    """All facts of our headers are returned, and the record's own headers as they were."""
    found = letter_origin([*OWN_HEADERS, *ours_at(7)])
    assert found.identity == ("g", "t", "id", 1, 7)
    assert (found.timestamp, found.error, found.message) == (1_700_000_000_000, "ValueError", "no")
    assert (found.attempt, found.headers) == (5, tuple(OWN_HEADERS))


@pytest.mark.parametrize(
    "headers",
    [
        connect_at(7),
        [*ours_at(7), *connect_at(7)],
        [*connect_at(7), *ours_at(7)],
    ],
)
def test_kafka_connect_s_names_are_read_too(headers: list[Header]) -> None:
    """Connect's headers are removed from the record's own, alone or with ours in either order."""
    found = letter_origin([*OWN_HEADERS, *headers])
    assert (found.topic, found.partition, found.offset, found.group) == ("t", 1, 7, "g")
    assert found.headers == tuple(OWN_HEADERS)


def test_a_letter_without_a_traceback_keeps_that_of_the_former_one() -> None:
    """It is one of the record's own headers, and goes back with it."""
    former = LetterHeaders("connect").of({**SAID, "offset": "4"}, failure(raised(ValueError("no"))))
    last = LetterHeaders("connect").of(SAID, failure())
    assert letter_origin([*former, *last]).headers == tuple(former)


@pytest.mark.parametrize("former", [ours_at(3, "t0"), keyed_at(3), connect_at(3, "t0")])
@pytest.mark.parametrize(
    "last",
    [ours_at(7), keyed_at(7), connect_at(7), [*ours_at(7), *connect_at(7)]],
)
def test_the_last_of_several_letters_counts(former: list[Header], last: list[Header]) -> None:
    """A record that came from a dead-letter topic keeps the headers that it had there."""
    found = letter_origin([*OWN_HEADERS, *former, *last])
    assert found.offset == 7
    assert found.headers == (*OWN_HEADERS, *former)


def test_a_record_that_was_replayed_says_so() -> None:
    """The header of the replay is the record's own, and each one counts."""
    replayed = (REPLAYED_HEADER, b"dead:0:1")
    found = letter_origin([*OWN_HEADERS, replayed, replayed, *ours_at(9)])
    assert (found.replays, found.headers) == (2, (*OWN_HEADERS, replayed, replayed))


def test_a_letter_without_a_place_has_no_identity() -> None:
    """A timer's letter, a foreign record and invalid numbers have none."""
    timer = [("headrace.partition", b"2"), ("headrace.timer", b"due"), ("headrace.message", b"m")]
    assert letter_origin(timer).identity is None
    assert letter_origin(timer).timer == "due"
    assert letter_origin(None).identity is None
    wrong = [("headrace.topic", b"t"), ("headrace.partition", b"\xff"), ("headrace.offset", b"1")]
    assert letter_origin(wrong).identity is None


def test_a_copy_of_overflow_says_which() -> None:
    """The reason stands where a letter has its error."""
    said = {"topic": "t", "partition": "0", "offset": "4", "overflow": "newest"}
    headers: list[Header] = [(f"headrace.{n}", text.encode()) for n, text in said.items()]
    found = letter_origin([*OWN_HEADERS, *headers])
    assert (found.error, found.offset, found.headers) == (
        "overflow (newest)",
        4,
        tuple(OWN_HEADERS),
    )
