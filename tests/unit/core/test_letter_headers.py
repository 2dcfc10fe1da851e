"""The headers of dead letters, under our names and Kafka Connect's."""

from __future__ import annotations

import pytest

from headrace.core.errors import PoisonRecordError
from headrace.core.letter_headers import (
    MESSAGE_LENGTH,
    TRACEBACK_LENGTH,
    Failure,
    LetterHeaders,
    Stage,
    full_name,
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
    """Each header that Kafka Connect writes is there, with text as it has it."""
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


def test_what_raised_nothing_has_a_message_only() -> None:
    """A record without a key, for instance; a timer's letter has no place either."""
    said = {"partition": "3", "timer": "t", "message": "late"}
    found = dict(LetterHeaders("connect", "group").of(said, failure()))
    assert found["__connect.errors.exception.message"] == b"cannot take it"
    assert found["__connect.errors.task.id"] == b"3"
    absent = {"topic", "offset", "exception.class.name", "exception.stacktrace"}
    assert not {f"__connect.errors.{name}" for name in absent} & found.keys()


def test_both_are_ours_and_then_kafka_connects() -> None:
    """Neither changes the other; by default only ours are there."""
    each = [LetterHeaders(names, "group").of(SAID, failure()) for names in ("headrace", "connect")]
    assert LetterHeaders("both", "group").of(SAID, failure()) == each[0] + each[1]
    assert LetterHeaders().of(SAID, failure()) == [
        (f"headrace.{name}", text.encode()) for name, text in SAID.items()
    ]


@pytest.mark.parametrize("names", ["headrace", "connect", "both"])
def test_a_letter_is_read_under_either_names(names: str) -> None:
    """Where a record is from and what was wrong is found, whatever the headers are called."""
    headers = LetterHeaders(names, "group").of(SAID, failure())  # type: ignore[arg-type]
    own: list[tuple[str, bytes | None]] = [("topic", b"not this"), ("trace", None)]
    found = read_letter([*own, *headers])
    assert {name: found[name] for name in SAID} == SAID
    assert found.keys() - SAID.keys() == ({"group"} if names != "headrace" else set())


def test_of_a_letter_that_was_one_before_the_last_headers_count() -> None:
    """A record that came from a dead-letter topic itself says where it was last."""
    first = LetterHeaders("both").of(SAID, failure())
    second = LetterHeaders("both").of({**SAID, "offset": "4"}, failure())
    assert read_letter([*first, *second])["offset"] == "4"
    assert read_letter([("headrace-from", b"t/0/1"), ("a", None)]) == {}


@pytest.mark.parametrize("length", [0, MESSAGE_LENGTH, MESSAGE_LENGTH + 1, 50_000])
def test_messages_are_kept_short(length: int) -> None:
    """A long one keeps its beginning and its end, where the reason stands."""
    text = shortened("b" + "." * length + "e") if length else shortened("")
    assert len(text) <= MESSAGE_LENGTH
    assert not length or (text[0], text[-1]) == ("b", "e")


def test_a_traceback_is_kept_short() -> None:
    """However deep the calls, and its end has the error."""
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
    """As class names in Java are; an object by its class, what is built in without a module."""
    assert full_name(thing) == name
