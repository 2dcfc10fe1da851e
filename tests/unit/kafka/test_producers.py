"""Properties of every producer."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from headrace.core.clock import Deadline
from headrace.core.result_columns import ResultColumns
from headrace.kafka import clients, dead_letters, topic_producer, transactional_producer
from headrace.kafka.dead_letters import KafkaDeadLetterStore
from headrace.kafka.errors import ProduceError
from headrace.kafka.ports import DeadLetter
from headrace.kafka.topic_producer import TopicProducer
from headrace.kafka.transactional_producer import TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ROOT = Path(__file__).resolve().parents[3]
_IN_FLIGHT = "max.in.flight.requests.per.connection"

#: What a user may say of it, in both orders: librdkafka takes the last of two names of a property.
_SAID = [
    {},
    {"max.in.flight": 5},
    {_IN_FLIGHT: 5, "max.in.flight": 1_000},
    {"max.in.flight": 1_000, _IN_FLIGHT: 5},
]


def _letter(given: Mapping[str, Any]) -> None:
    letter = DeadLetter(key=None, value=b"", headers=())
    with pytest.raises(ProduceError, match="buffers are full"):
        KafkaDeadLetterStore(given).store("letters", letter, 1)


def _letters(given: Mapping[str, Any]) -> None:
    letters = ResultColumns("letters", pa.nulls(1, pa.binary()), pa.array([b""]))
    with pytest.raises(ProduceError, match="take no more records"):
        KafkaDeadLetterStore(given).store_all(letters, 0)


class _Made:
    """A producer that takes nothing, and what it was made with."""

    def __init__(self) -> None:
        self.properties: list[dict[str, Any]] = []

    def __call__(self, given: dict[str, Any]) -> _Made:
        self.properties.append(given)
        return self

    def produce(self, *_: object, **__: object) -> None:
        """Be full."""
        raise BufferError("buffers are full")

    def purge(self) -> None:
        """Drop nothing."""


@pytest.mark.parametrize("said", _SAID)
@pytest.mark.parametrize(
    ("module", "make"),
    [
        (topic_producer, lambda given: TopicProducer(given, "topic")),
        (transactional_producer, lambda given: TransactionalProducer(given, "id")),
        (transactional_producer, lambda given: TransactionalProducer(given, "id", quiet=True)),
        (dead_letters, _letter),
        (dead_letters, _letters),
    ],
    ids=["topic", "offsets", "sink", "dead letter", "dead letters"],
)
def test_a_producer_has_one_request_in_flight(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    make: Callable[[Mapping[str, Any]], object],
    said: dict[str, int],
) -> None:
    """The limit replaces the user's property under either name; other properties hold."""
    made = _Made()
    monkeypatch.setattr(module, "Producer", made)
    make({"bootstrap.servers": "127.0.0.1:1", **said})
    (given,) = made.properties
    assert (given[_IN_FLIGHT], "max.in.flight" in given) == (1, False)
    assert given["bootstrap.servers"] == "127.0.0.1:1"


@pytest.mark.parametrize("said", _SAID)
def test_a_consumer_keeps_the_user_s_properties(said: dict[str, int]) -> None:
    """Requests of consumers are as many as before."""
    given = clients.source(clients.base(said), "group", 0)
    assert said.items() <= given.items()
    assert (_IN_FLIGHT in given) == (_IN_FLIGHT in said)


def test_no_producer_is_made_without_it() -> None:
    """Each producer in the package is made with what ``clients.producer`` returns.

    What ``headrace init`` writes into a user's folder is no part of it.
    """
    written = _ROOT / "headrace" / "ops" / "init" / "project"
    made = {
        str(path.relative_to(_ROOT)): [ast.unparse(argument) for argument in call.args]
        for path in (_ROOT / "headrace").rglob("*.py")
        if written not in path.parents
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "Producer"
    }
    assert made.keys() == {
        "headrace/kafka/dead_letters.py",
        "headrace/kafka/topic_producer.py",
        "headrace/kafka/transactional_producer.py",
    }
    for arguments in made.values():
        (argument,) = arguments
        assert argument.startswith("clients.producer(")


def test_records_have_the_time_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes to the client in milliseconds; 0, which the client takes for now, is the default."""
    times: list[int] = []

    class Taking(_Made):
        """A producer that takes everything."""

        def produce(self, *_: object, **given: object) -> None:
            """Note the time."""
            times.append(cast("int", given["timestamp"]))

        def poll(self, _: float) -> None:
            """Return at once."""

    monkeypatch.setattr(topic_producer, "Producer", Taking())
    producer = TopicProducer({"bootstrap.servers": "127.0.0.1:1"}, "topic")
    producer.send([(b"k", b"v")], Deadline.after(1), time=1_356_998_400_000)
    producer.send([(None, b"v")], Deadline.after(1))
    assert times == [1_356_998_400_000, 0]
