from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from pyspark import cloudpickle as imported

from headrace.config import ChannelConfig, KafkaConfig
from headrace.core.errors import ImportPathError, StartError
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import SparkSettings
from headrace.processors.factory import build_processor
from headrace.sinks import Guarantee
from headrace.sinks.console import NoopSink
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.unit.channel.in_memory import P0, P1, committed, filled_broker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from headrace.processors import BatchProcessor
    from headrace.sinks import PartitionCommit
    from headrace.spark import MicroBatch

#: pyspark's own copy, which has no annotations.
cloudpickle: Any = imported

#: What sinks made by :func:`collecting` were given, by their name.
COLLECTED: dict[str, list[Any]] = {}


class Collecting(NoopSink):
    """A sink that keeps what is committed under its name."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, name: str) -> None:
        self._name = name

    def stage(self, micro_batch: MicroBatch, result: Any) -> Any:
        """Keep the rows."""
        del micro_batch
        return [] if result is None else result.to_pylist()

    def commit(self, staged: Any, offsets: Sequence[PartitionCommit]) -> None:
        """Store the rows."""
        del offsets
        COLLECTED.setdefault(self._name, []).extend(staged)


def collecting(*, name: str) -> Collecting:
    """Make a sink that keeps what it is given."""
    return Collecting(name)


def a_class() -> type[Collecting]:
    """Return no object."""
    return Collecting


def nothing() -> None:
    """Return what is no sink."""


class Half:
    """Something with a part of what a sink has."""

    guarantee = "exactly once"

    def do_nothing(self, *_: Any) -> None:
        """Do nothing."""

    open = stage = stored_offset = close = do_nothing


class Unclear(Half):
    """A sink in all but what it promises."""

    commit = discard = Half.do_nothing


def offsets(table: pa.Table, batch: MicroBatch) -> pa.Table:
    """Return the records' offsets."""
    del batch
    return table.select(["partition", "offset"])


def no_spark() -> NoReturn:
    """Fail: a channel of type arrow takes no Spark runtime."""
    raise AssertionError("a channel of type arrow takes no Spark")


def settings(factory: str, **sink: Any) -> dict[str, Any]:
    """Return what is particular to a channel with a sink made by ``factory``."""
    processor = {"type": "arrow", "reducer": f"{__name__}:offsets"}
    return {
        "processor": processor,
        "sink": {"type": "custom", "factory": f"{__name__}:{factory}", **sink},
    }


def build(chosen: dict[str, Any]) -> BatchProcessor:
    """Build a processor as the controller does."""
    config = ChannelConfig.model_validate({"topics": ["events"], "group": "group", **chosen})
    return build_processor(config, no_spark, "member", KafkaConfig())


def test_a_channel_writes_to_a_sink_that_its_configuration_names() -> None:
    """The factory is called with the options; what it returns gets the results."""
    broker: InMemoryBroker = filled_broker()
    chosen = settings("collecting", options={"name": "first"})
    channel = in_memory_channel(build(chosen), broker, **chosen)
    with running(channel):
        assert committed(broker, P0, 10)
        assert committed(broker, P1, 10)
    found = {(row["partition"], row["offset"]) for row in COLLECTED["first"]}
    assert found == {(number, offset) for number in range(2) for offset in range(10)}


@pytest.mark.parametrize(
    ("factory", "options", "words"),
    [
        ("absent", {}, "sink.factory: .* has no 'absent'"),
        (
            "collecting",
            {"nome": "x"},
            r"takes .*name.*, and the options are nome: .*; correct them",
        ),
        ("collecting", {}, "the options are none: missing a required"),
        ("nothing", {}, "returned None, which is not a sink: it has no open and no stored_offset"),
        (
            "a_class",
            {},
            "returned <class .*>, which is not a sink: it is a class; return an instance",
        ),
        ("Half", {}, "returned a Half, .*: it has no commit and no discard; docs/sinks/custom.md"),
        ("Unclear", {}, "its guarantee is none of headrace.sinks.Guarantee"),
    ],
)
def test_a_factory_that_makes_no_sink_stops_the_start(
    factory: str, options: dict[str, Any], words: str
) -> None:
    """The sentence names the key, the factory, and what is wrong with it."""
    with pytest.raises(ImportPathError, match=words):
        build(settings(factory, options=options))


def test_a_sink_that_promises_less_than_is_demanded_stops_the_start() -> None:
    """The check of the configuration goes by what is demanded, so the start holds to it."""
    chosen = settings("collecting", options={"name": "x"}, guarantee="exactly_once")
    with pytest.raises(
        StartError, match=r"sink\.guarantee: is exactly_once, and .* promises 'at l"
    ):
        build(chosen)


@pytest.fixture
def by_value() -> Iterator[None]:
    """Restore how modules of the tests are pickled."""
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules["tests"])


@pytest.mark.usefixtures("by_value")
def test_the_sink_s_package_goes_to_spark_s_workers_by_value() -> None:
    """Workers of Spark run the sink's code as it is imported here, also after it has changed."""
    chosen = settings("collecting", options={"name": "x"})
    chosen["processor"] = {"type": "spark", "sql": "select 1"}
    config = ChannelConfig.model_validate({"topics": ["events"], "group": "group", **chosen})
    runtime = SparkRuntime(SparkSettings("local[1]"))
    build_processor(config, lambda: runtime, "member", KafkaConfig())
    assert "tests" in cloudpickle.list_registry_pickle_by_value()
