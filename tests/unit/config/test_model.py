from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from headrace.config import (
    BatchConfig,
    Config,
    DynamicCoordinatorConfig,
    FixedCountCoordinatorConfig,
    KafkaOffsetsConfig,
    MicroBatchRejects,
    ReloadEffect,
    RetryConfig,
    StaticCoordinatorConfig,
    ZooKeeperOffsetsConfig,
)
from headrace.config.models.base import effect_of
from headrace.config.problems import field_shape, fields
from headrace.config.reference import Chapter, chapters, is_hot, meanings
from headrace.extensions.delta.section import DeltaSinkConfig
from headrace.extensions.spark.section import SparkProcessorConfig
from headrace.sinks.sections import FunctionSinkConfig, JsonLinesSinkConfig, NoopSinkConfig
from tests.unit.config.support import CHANNELS, channel, loaded

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config import Section

SECTIONS = [chapter.section for chapter in chapters()]


def test_the_least_file_has_all_defaults(tmp_path: Path) -> None:
    """A file with one channel gives a configuration in which everything else is filled in."""
    config = loaded(tmp_path, CHANNELS)
    flights = config.channels["flights"]
    assert (config.shutdown_timeout, config.python_path) == (30.0, ())
    assert config.kafka.bootstrap_servers == ("localhost:9092",)
    assert (config.kafka.tls, config.kafka.sasl, config.kafka.properties) == (None, None, {})
    assert config.zookeeper.hosts == ("localhost:2181",)
    assert (config.zookeeper.session_timeout, config.zookeeper.connect_timeout) == (10.0, 15.0)
    assert (config.zookeeper.chroot, config.zookeeper.node_acl) == ("", "open")
    assert (config.spark.master, config.spark.driver_memory) == ("local[*]", 1024**3)
    assert (config.metrics.host, config.metrics.port) == ("127.0.0.1", None)
    assert (config.admin.enabled, config.admin.host) == (True, "127.0.0.1")
    assert (config.admin.port, config.admin.token, config.admin.tls) == (None, None, None)
    assert (config.logging.level, config.logging.format) == ("info", "auto")
    assert flights.coordinator == DynamicCoordinatorConfig()
    assert flights.batch == BatchConfig()
    assert (flights.batch.max_records, flights.batch.max_bytes) == (10_000, 16 * 1024**2)
    assert (flights.batch.linger, flights.buffer.max_bytes) == (0.1, 128 * 1024**2)
    assert (flights.idle_time, flights.batch_timeout, flights.commit_interval) == (60, 300, 1)
    assert (flights.enabled, flights.workers, flights.max_in_flight) == (True, 2, 2)
    assert (flights.initial_offset, flights.offset_out_of_range) == ("earliest", "earliest")
    assert flights.retry == RetryConfig()
    assert flights.rejects == MicroBatchRejects()
    assert isinstance(flights.processor, SparkProcessorConfig)
    assert (flights.processor.decode, flights.processor.max_records) == ("none", 100_000)


@pytest.mark.parametrize(
    ("processor", "sink", "given", "expected"),
    [
        ({"type": "spark", "reducer": "a:b"}, "noop", {}, 2),
        ({"type": "spark", "reducer": "a:b"}, "noop", {"max_in_flight": None}, 2),
        ({"type": "spark", "reducer": "a:b"}, "noop", {"max_in_flight": 5}, 5),
        ({"type": "arrow", "reducer": "a:b"}, "noop", {}, 2),
        ({"type": "simple"}, "a:b", {}, 1),
        ({"type": "custom", "factory": "a:b"}, None, {"max_in_flight": None}, 1),
    ],
)
def test_batches_in_flight_depend_on_the_processor(
    processor: dict[str, Any], sink: str | None, given: dict[str, Any], expected: int
) -> None:
    """Without a number of its own, a channel has two batches in flight for Spark, else one."""
    assert channel(processor=processor, sink=sink, **given).max_in_flight == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"retry": {"attempts": None}}, None),
        ({"rejects": {"failing": "skip"}}, 5),
        ({"retry": {"attempts": None}, "rejects": {"failing": "skip"}}, 5),
        ({"retry": {"attempts": 3}}, 3),
        ({"retry": {"attempts": 1}, "rejects": {"failing": "skip"}}, 1),
    ],
)
def test_attempts_depend_on_the_policy(given: dict[str, Any], expected: int | None) -> None:
    """A batch is retried for ever, or five times where the policy gives up."""
    assert channel(**given).attempts == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("dynamic", DynamicCoordinatorConfig()),
        ({}, DynamicCoordinatorConfig()),
        ({"weight": 2}, DynamicCoordinatorConfig(weight=2)),
        (
            {"type": "fixed_count", "partitions_per_topic": 3},
            FixedCountCoordinatorConfig(partitions_per_topic=3),
        ),
        (
            {"type": "static", "partitions": {"flights": [1, "3-4"]}},
            StaticCoordinatorConfig(partitions={"flights": [1, 3, 4]}),
        ),
        (DynamicCoordinatorConfig(weight=3), DynamicCoordinatorConfig(weight=3)),
    ],
)
def test_coordinators_can_be_written_short(written: object, expected: Section) -> None:
    """A word names a coordinator's type, and no type means dynamic."""
    assert channel(coordinator=written).coordinator == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("kafka", KafkaOffsetsConfig()),
        ("zookeeper", ZooKeeperOffsetsConfig()),
        ({}, KafkaOffsetsConfig(fencing="metadata")),
        ({"fencing": "transactions"}, KafkaOffsetsConfig(fencing="transactions")),
        (ZooKeeperOffsetsConfig(), ZooKeeperOffsetsConfig()),
    ],
)
def test_offsets_can_be_written_short(written: object, expected: Section) -> None:
    """A word names where offsets are kept, and no type means Kafka, as does nothing at all."""
    assert channel(offsets=written).offsets == expected
    assert channel().offsets == KafkaOffsetsConfig()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("noop", NoopSinkConfig()),
        ({"type": "noop"}, NoopSinkConfig()),
        ({"type": "delta", "path": "/t"}, DeltaSinkConfig(path="/t")),
        (NoopSinkConfig(), NoopSinkConfig()),
    ],
)
def test_sinks_can_be_written_short(written: object, expected: Section) -> None:
    """A word names a sink's type."""
    assert channel(sink=written).sink == expected


def test_a_function_can_be_written_short() -> None:
    """An import path in place of a sink is the simple processor's function."""
    written = channel(processor={"type": "simple"}, sink="package.module:send")
    assert written.sink == FunctionSinkConfig(function="package.module:send")


def test_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    """Relative paths are resolved against the file's folder; absolute ones are kept."""
    text = """
state_dir: state
python_path: [., ../lib, /opt/lib]
kafka: {tls: {ca_file: tls/ca.pem}}
channels:
  a: {topics: [a], group: a, processor: &p {type: spark, reducer: "a:b"},
      sink: {type: delta, path: t}}
  b: {topics: [a], group: b, processor: *p, sink: {type: delta, path: /t}}
  c: {topics: [a], group: c, processor: *p, sink: {type: jsonl, path: ./out.jsonl}}
"""
    config = loaded(tmp_path, text)
    assert config.state_dir == tmp_path / "state"
    assert list(map(str, config.python_path)) == [
        str(tmp_path),
        str(tmp_path.parent / "lib"),
        "/opt/lib",
    ]
    assert config.kafka.tls is not None
    assert config.kafka.tls.ca_file == tmp_path / "tls" / "ca.pem"
    assert config.channels["a"].sink == DeltaSinkConfig(path=str(tmp_path / "t"))
    assert config.channels["b"].sink == DeltaSinkConfig(path="/t")
    assert config.channels["c"].sink == JsonLinesSinkConfig(path=str(tmp_path / "out.jsonl"))


def test_typed_fields_read_references(tmp_path: Path) -> None:
    """Numbers, truth values, durations, sizes, words and servers can come from variables."""
    environ = {"N": "7", "B": "no", "D": "3", "S": "1GiB", "W": "latest", "H": "a, b:1", "F": "a:b"}
    text = """
kafka: {bootstrap_servers: "${H}"}
spark: {driver_memory: "${S}"}
metrics: {port: "94${N}"}
channels:
  flights:
    enabled: ${B}
    topics: ["${W}", "${N}"]
    group: ${N}
    initial_offset: ${W}
    workers: ${N}
    batch: {linger: "${D}ms"}
    processor: {type: simple, max_read_rate: "${N}"}
    sink: ${F}
    coordinator: {type: static, partitions: {latest: ["${N}", "1-${D}"]}}
"""
    config = loaded(tmp_path, text, environ)
    flights = config.channels["flights"]
    assert config.kafka.bootstrap_servers == ("a:9092", "b:1")
    assert (config.spark.driver_memory, config.metrics.port) == (1024**3, 947)
    assert (flights.enabled, flights.workers, flights.batch.linger) == (False, 7, 0.003)
    assert (flights.topics, flights.group) == (("latest", "7"), "7")
    assert flights.initial_offset == "latest"
    assert flights.sink == FunctionSinkConfig(function="a:b")
    assert isinstance(flights.coordinator, StaticCoordinatorConfig)
    assert flights.coordinator.partitions == {"latest": frozenset({1, 2, 3, 7})}


def test_a_loaded_configuration_is_frozen(tmp_path: Path) -> None:
    """Sections are frozen, and lists in them are tuples."""
    config = loaded(tmp_path, CHANNELS)
    with pytest.raises(ValidationError, match="frozen"):
        config.channels["flights"].workers = 3  # type: ignore[misc]  # what the test is about
    assert isinstance(config.channels["flights"].topics, tuple)


def test_equal_files_give_equal_configurations(tmp_path: Path) -> None:
    """Loading twice gives equal values, so that a difference means a change."""
    assert loaded(tmp_path, CHANNELS) == loaded(tmp_path, CHANNELS)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_field_is_described_and_declared(section: type[Section]) -> None:
    """Each field has a description and says what a change touches; a section is hot when all is."""
    for name, field in fields(section):
        assert meanings(section)[name], name
        assert len([e for e in field.metadata if isinstance(e, ReloadEffect)]) == 1, name
        inner = field_shape(field).sections
        if len(inner) == 1:
            assert is_hot(field) == all(is_hot(f) for _, f in fields(inner[0])), name


@pytest.mark.parametrize("chapter", list(chapters()), ids=lambda chapter: chapter.title)
def test_a_field_s_reload_effect_fits_its_section(chapter: Chapter) -> None:
    """A channel's fields, and a topology's, affect channels at most, and no shared one does so."""
    inside = chapter.path.startswith(("channels.", "topologies."))
    alone = {ReloadEffect.SHARING, ReloadEffect.TOPICS, ReloadEffect.CHANNEL}
    for name, field in fields(chapter.section):
        effect = effect_of(field)
        assert effect is ReloadEffect.IN_PLACE or (effect in alone) == (
            inside or name in {"channels", "topologies"}
        ), name


def test_every_section_is_described() -> None:
    """Each section has a docstring of its own, which the reference shows."""
    assert all("__doc__" in vars(section) and section.__doc__ for section in SECTIONS)


def test_free_mappings_are_typed_as_unchangeable() -> None:
    """Mappings are declared so that the type checker refuses to change them."""
    assert field_shape(Config.model_fields["channels"]).type.__origin__ is Mapping
