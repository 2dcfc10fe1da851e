"""A consumer in columns that is not used as it is meant to be, and what it leaves to others."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.errors import ConfigError
from headrace.core.records import TopicPartition
from headrace.kafka.columnar import ColumnarRecordSource, library
from headrace.kafka.columnar.source import Consumer, Directive
from headrace.kafka.errors import LibraryMissingError

if TYPE_CHECKING:
    from collections.abc import Callable

PROPERTIES = {"group.id": "group", "log_level": 0}
PARTITION = TopicPartition("events", 0)


@pytest.fixture(autouse=True)
def _library() -> None:
    """Skip where there is no library."""
    try:
        library.load()
    except LibraryMissingError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.take(1, 1, 0),
        lambda consumer: consumer.events(),
        lambda consumer: consumer.end(PARTITION),
        lambda consumer: consumer.direct(Directive.PAUSE, {PARTITION: 0}),
        lambda consumer: consumer.look_up("events", 0),
    ],
)
def test_a_closed_consumer_raises(call: Callable[[Consumer], Any]) -> None:
    """A closed consumer's call is an error in Python, not the process's end."""
    consumer = Consumer(PROPERTIES)
    consumer.close()
    consumer.close()
    with pytest.raises(RuntimeError, match="is closed"):
        call(consumer)


def test_a_forgotten_consumer_is_closed() -> None:
    """A consumer that is freed takes librdkafka's threads and connections with it."""
    gc.collect()  # what earlier tests left
    before = _threads()
    consumer = Consumer(PROPERTIES)
    assert _threads() > before
    del consumer
    gc.collect()
    assert _threads() == before


def _threads() -> int:
    """Return how many threads of librdkafka's there are in this process."""
    names = list(Path("/proc/self/task").glob("*/comm"))
    if not names:
        pytest.skip("threads have no names here")
    return sum(name.read_text().startswith("rdk:") for name in names)


def test_a_login_that_python_makes_is_refused() -> None:
    """Tokens of AWS come from a callback in Python: librdkafka alone would never log in."""
    aws = {
        **PROPERTIES,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.metadata.authentication.type": "aws_iam",
    }
    with pytest.raises(LibraryMissingError, match="aws_iam"):
        Consumer(aws)


def test_plugins_are_loaded_before_what_they_may_bring_is_set() -> None:
    """Properties of a plugin's are known to librdkafka only behind the plugin."""
    with pytest.raises(ConfigError, match=r"no\.such\.plugin"):
        Consumer({**PROPERTIES, "its.property": 1, "plugin.library.paths": "no.such.plugin"})


def test_the_smallest_budget_lets_records_in() -> None:
    """A fetch without room for a byte would bring nothing, for ever."""
    source = ColumnarRecordSource({"log_level": 0}, "group", 0)
    try:
        assert source._max_bytes == 1
    finally:
        source.close()
