"""The two channels that a keyed one is where it re-keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.config import CustomDecoding, RekeyRejects, diff, show
from headrace.config.derived import rekeying_of
from headrace.config.guarantee import guarantee
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.section import KeyedProcessorConfig, RekeyProcessorConfig
from headrace.sinks.sections import KafkaSinkConfig
from tests.unit.config.support import loaded, refused

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config import ChannelConfig

CHANNELS = """
channels:
  orders:
    topics: [orders]
    group: status
    initial_offset: latest
    workers: 5
    retry: {attempts: 7}
    processor: {type: keyed, reducer: "orders:status", engine: arrow, key: %s%s}
    sink: {type: kafka, topic: out}%s
"""


def text(key: str = "value.customer.id", processor: str = "", channel: str = "") -> str:
    """Return a file with a channel that re-keys."""
    return CHANNELS % (key, processor, channel)


def test_a_channel_that_re_keys_is_two(tmp_path: Path) -> None:
    """The first reads the input and writes it by key, the second reads that; the first is first."""
    channels = loaded(tmp_path, text()).channels
    assert list(channels) == ["orders.rekey", "orders"]
    first, second = channels["orders.rekey"], channels["orders"]
    assert (first.topics, first.group) == (("orders",), "status.rekey")
    assert first.sink == KafkaSinkConfig(topic="status.orders.by-key")
    assert first.processor == RekeyProcessorConfig(key="value.customer.id", engine="arrow")
    assert (second.topics, second.group) == (("status.orders.by-key",), "status")
    assert isinstance(second.processor, KeyedProcessorConfig)
    assert second.processor.key == "record"
    assert second.processor.internal.purge_input == 30.0
    assert str(guarantee(first)).startswith("exactly-once")


def test_the_first_has_what_the_channel_has(tmp_path: Path) -> None:
    """Workers, policies and the start are as configured; of the by-key topic all is read."""
    channels = loaded(tmp_path, text()).channels
    first, second = channels["orders.rekey"], channels["orders"]
    assert (first.workers, first.retry, first.initial_offset) == (5, second.retry, "latest")
    assert second.initial_offset == "earliest"


def test_the_first_reads_values_as_the_channel_does(tmp_path: Path) -> None:
    """It has the decoder with its options, or it could not find the key."""
    decoder = ', value: "acme:Decoder", decoder_options: {strict: true}'
    first = loaded(tmp_path, text(processor=decoder)).channels["orders.rekey"].processor
    assert isinstance(first, RekeyProcessorConfig)
    assert first.decoder == CustomDecoding.of("acme:Decoder", {"strict": True})


@pytest.mark.parametrize(
    ("given", "expected", "letters"),
    [
        ("fail", "fail", None),
        ("skip", "skip", None),
        ("dead_letter, topic: dead", "dead_letter", "dead"),
        ("quarantine, topic: dead", "dead_letter", "dead"),
        ("fail, undecodable: skip", "skip", None),
        ("quarantine, undecodable: skip, topic: dead", "skip", None),
        ("skip, undecodable: quarantine, topic: dead", "dead_letter", "dead"),
    ],
)
def test_a_record_without_a_key_follows_the_rule_for_failing_facts(
    tmp_path: Path, given: str, expected: str, letters: str | None
) -> None:
    """Quarantine, which needs a key, becomes another rule."""
    file = text(channel=f"\n    rejects: {{failing: {given}}}")
    made = loaded(tmp_path, file).channels["orders.rekey"].rejects
    assert isinstance(made, RekeyRejects)
    assert (made.undecodable, made.topic) == (expected, letters)


@pytest.mark.parametrize("late", ["deliver", "dead_letter"])
def test_letters_of_both_have_the_same_headers(tmp_path: Path, late: str) -> None:
    """The configured ``headers`` apply to records without a key."""
    given = "failing: dead_letter, topic: dead, headers: connect"
    given += "" if late == "deliver" else f", late: {late}"
    grace = "" if late == "deliver" else ", grace: 1s"
    file = text(processor=grace, channel=f"\n    rejects: {{{given}}}")
    assert loaded(tmp_path, file).channels["orders.rekey"].rejects.headers == "connect"


def test_a_static_coordinator_names_the_partitions_of_both_topics(tmp_path: Path) -> None:
    """The list of the input's partitions applies to the by-key topic."""
    listed = "\n    coordinator: {type: static, partitions: {orders: [0, 2]}}"
    channels = loaded(tmp_path, text(channel=listed)).channels
    found = [getattr(channels[name].coordinator, "partitions") for name in channels]  # noqa: B009
    assert [set(each) for each in found] == [{"orders"}, {"status.orders.by-key"}]
    assert found[0]["orders"] == found[1]["status.orders.by-key"]


@pytest.mark.parametrize(
    "value", ["json", "json_schema", "avro, reader_schema: {subject: orders-value}"]
)
def test_both_shown_channels_load_as_the_same(tmp_path: Path, value: str) -> None:
    """The shown text has both channels, and loading it derives no further ones."""
    registry = "registry: {url: http://registry:8081}\n"
    config = loaded(tmp_path, registry + text(processor=f", value: {value}"))
    assert loaded(tmp_path, show(config)) == config


def test_another_key_concerns_the_first_channel_alone(tmp_path: Path) -> None:
    """A reload with another key starts the re-keying channel again, and leaves the other one."""
    changes = diff(loaded(tmp_path, text()), loaded(tmp_path, text("headers.tenant")))
    assert [(change.channel, change.steps[-1]) for change in changes] == [("orders.rekey", "key")]


@pytest.mark.parametrize(
    "key", ["key", "headers.x-tenant", "headrace.apps.collector:group_of", "value.Kunde.Straße"]
)
def test_the_first_channel_has_the_key(tmp_path: Path, key: str) -> None:
    """The path of the key is the re-keying channel's."""
    made = loaded(tmp_path, text(f'"{key}"')).channels["orders.rekey"].processor
    assert isinstance(made, RekeyProcessorConfig)
    assert made.key == key


@pytest.mark.parametrize("key", ["record", "partition", "constant"])
def test_keys_of_their_own_need_no_second_channel(tmp_path: Path, key: str) -> None:
    """A key that is the record's, or none, makes no re-keying channel."""
    assert list(loaded(tmp_path, text(key)).channels) == ["orders"]


def test_state_by_another_key_is_kept_apart() -> None:
    """The changelog of re-keyed facts is not that of facts by the record's key."""
    assert changelog_name("g", "orders") == "g.orders.state"
    assert changelog_name("g", "g.orders.by-key") == "g.orders.by-key.state"


OTHER = """
  %s:
    topics: [%s]
    group: %s
    processor: {type: simple}
    sink: a:b"""


@pytest.mark.parametrize(
    ("file", "place", "words"),
    [
        (text("value"), "processor.key", "is not record, partition, constant, key, value.<field>"),
        (text("{orders: key}"), "processor.key", "a mapping is not record, partition"),
        (text("headers."), "processor.key", "is not record"),
        (text("orders"), "processor.key", "is not record"),
        (text(processor=", value: bytes"), "processor.key", "a field of the value, and value is"),
        (
            text("record", ", internal: {partitions: 3}"),
            "internal.partitions",
            "exists only with a key",
        ),
        (
            text(channel=OTHER % ("orders.rekey", "x", "x")),
            "processor.key",
            "for which a channel orders.rekey is made, and there is one of that name",
        ),
        (text(channel=OTHER % ("x", "x", "status.rekey")), "group", "as in channel"),
        (
            text().replace("group: status", 'group: "status of orders"'),
            "group",
            "a topic cannot be called status of orders.orders.by-key.state",
        ),
        (
            text().replace("topic: out", "topic: status.orders.by-key.state"),
            "sink.topic",
            "where the channel keeps its state",
        ),
        (
            text(key="record").replace("topic: out", "topic: status.orders.state"),
            "sink.topic",
            "where the channel keeps its state",
        ),
        (
            text(key="record", processor=", internal: {purge_input: 30s}"),
            "internal.purge_input",
            "would delete records of orders, which others may read",
        ),
        (
            text().replace("topic: out", "topic: status.orders.by-key"),
            "sink.topic",
            "which the channel reads",
        ),
        (
            text(
                processor=", internal: {partitions: 3}",
                channel="\n    coordinator: {type: static, partitions: {orders: [0]}}",
            ),
            "internal.partitions",
            "does not go with a static coordinator",
        ),
        (text().replace("[orders]", "[orders, more]"), "processor.key", "re-key each"),
        (text().replace("[orders]", '["^orders"]'), "topics", "name each topic"),
    ],
)
def test_a_conflict_of_fields_is_refused(tmp_path: Path, file: str, place: str, words: str) -> None:
    """The message names a place in the file, and the reason."""
    (problem,) = refused(tmp_path, file)
    assert place in problem.partition(": ")[0]
    assert words in problem


REKEY = """
channels:
  by-customer:
    topics: [%s]
    group: by-customer
    processor: {type: rekey, key: %s%s}
    sink: %s
    rejects: %s
"""


def test_a_channel_may_re_key_by_itself(tmp_path: Path) -> None:
    """The processor can be configured for readers of another kind."""
    file = REKEY % ("orders", "key", "", "{type: kafka, topic: orders-by-key}", "{}")
    (made,) = loaded(tmp_path, file).channels.values()
    assert made.max_in_flight == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("orders", "record", "", "{type: kafka, topic: t}"), "is not key, value.<field>"),
        (("orders", "key", "", "noop"), "does not fit the rekey processor; it takes kafka"),
        (("orders", "key", "", "{type: kafka}"), "the rekey processor writes to one topic"),
        (("orders", "key", "", "{type: kafka, topic: orders}"), "which the channel reads"),
        (("^orders", "key", "", "{type: kafka, topic: t}"), "internal.partitions"),
        (
            ("orders", "key", ", reload: true", "{type: kafka, topic: t}"),
            "exists only with a function as key or a decoder",
        ),
        (
            ("orders", "key", "", "{type: kafka, topic: t}", "{undecodable: dead_letter}"),
            "is missing; undecodable: dead_letter needs a topic",
        ),
        (
            (
                "o",
                "key",
                "",
                "{type: kafka, topic: t}",
                "{undecodable: dead_letter, topic: o}",
            ),
            "which the channel reads itself",
        ),
    ],
)
def test_a_conflict_with_re_keying_is_refused(
    tmp_path: Path, given: tuple[str, ...], words: str
) -> None:
    """The message of the processor has the reason."""
    (problem,) = refused(tmp_path, REKEY % (*given, "{}")[:5])
    assert words in problem


def test_it_is_known_which_channel_re_keys_what_another_reads(tmp_path: Path) -> None:
    """A derived re-keying channel is found, and one that the file has itself."""
    channels = loaded(tmp_path, text()).channels
    assert rekeying_of("orders", channels) == {"status.orders.by-key": "orders.rekey"}
    assert rekeying_of("orders.rekey", channels) == {}
    first = channels["orders.rekey"]
    reads = channels["orders"].model_copy(update={"topics": ("status.orders.by-key", "other")})
    named = {"a": first, "b": reads}
    assert rekeying_of("b", named) == {"status.orders.by-key": "a"}


def test_of_channels_that_re_key_for_each_other_the_first_waits_for_none(tmp_path: Path) -> None:
    """So a bounded run of a circle ends."""
    first = loaded(tmp_path, text()).channels["orders.rekey"]
    written = first.sink
    assert isinstance(written, KafkaSinkConfig)
    one = first.model_copy(update={"topics": ("back",)})
    sink = written.model_copy(update={"topic": "back"})
    other = first.model_copy(update={"topics": ("status.orders.by-key",), "sink": sink})
    for order in (("one", "other"), ("other", "one")):
        both = {"one": one, "other": other}
        channels = {name: both[name] for name in order}
        waits = {name: set(rekeying_of(name, channels).values()) for name in order}
        assert waits == {order[0]: set(), order[1]: {order[0]}}


@pytest.mark.parametrize(
    ("internal", "purge"),
    [("", 30.0), (", internal: {purge_input: 5s}", 5.0), (", internal: {purge_input: null}", None)],
)
def test_null_means_that_nothing_is_purged(
    tmp_path: Path, internal: str, purge: float | None
) -> None:
    """Without the key the usual interval applies."""
    second = loaded(tmp_path, text(processor=internal)).channels["orders"].processor
    assert isinstance(second, KeyedProcessorConfig)
    assert second.internal.purge_input == purge


def _key_of(channel: ChannelConfig) -> str | None:
    assert isinstance(channel.processor, KeyedProcessorConfig)
    return channel.processor.state_key(channel)


def test_a_second_channel_that_is_written_out_names_no_key_of_its_own(tmp_path: Path) -> None:
    """Made of one it has the key of that; where both are written, only the first one says it."""
    made = loaded(tmp_path, text())
    shown = loaded(tmp_path, show(made))
    keyed = [name for name in made.channels if not name.endswith(".rekey")]
    found = [tuple(_key_of(each.channels[name]) for each in (made, shown)) for name in keyed]
    assert all(first is not None and second is None for first, second in found)
    assert found
