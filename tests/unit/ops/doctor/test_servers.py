from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.findings import Level
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.topics import CHANGELOG_SETTINGS
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.ports import ChangelogMark, StoredOffset, TopicInfo
from headrace.ops.doctor import zookeeper
from headrace.ops.doctor.kafka import (
    check_retention,
    check_stamps,
    check_written,
    judge_offsets,
    judge_topics,
    made_at_the_start,
)
from headrace.ops.doctor.keyed import check_internal, check_state, judge_partitioner
from headrace.ops.doctor.zookeeper import check_zookeeper, judge
from headrace.testing import InMemoryBroker
from headrace.testing.records import FakeRecord
from headrace.zookeeper.errors import ZooKeeperUnavailableError
from headrace.zookeeper.survey import ZooKeeperFacts
from tests.kinds import TasksConfig
from tests.unit.ops.doctor.support import bad, config, only

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from headrace.config import Config

_FACTS = ZooKeeperFacts(
    session_timeout=10.0,
    version="3.9.3",
    mode="follower",
    chroot_exists=True,
    skew=0.1,
    skew_error=0.01,
    denied=(),
)


_DIGEST: dict[str, Any] = {"digest": {"username": "headrace", "password": "secret"}}
_CERTIFICATE: dict[str, Any] = {"tls": {"certificate_file": "cert", "key_file": "key"}}


def test_a_good_ensemble_is_fine(tmp_path: Path) -> None:
    """Three servers that agree have no finding."""
    assert not bad(judge(_FACTS, config(tmp_path, zookeeper=_DIGEST)))


@pytest.mark.parametrize(
    ("zookeeper", "advice"),
    [
        ({}, "give zookeeper.digest or .sasl"),
        (_CERTIFICATE, "set zookeeper.acl: creator"),
        ({**_DIGEST, "acl": "open"}, "set zookeeper.acl: creator"),
    ],
)
def test_nodes_that_are_made_open_are_told(
    tmp_path: Path, zookeeper: dict[str, Any], advice: str
) -> None:
    """Any client of ZooKeeper may change such nodes; the advice depends on the configuration."""
    found = only(judge(_FACTS, config(tmp_path, zookeeper=zookeeper)))
    assert (found.check, found.level) == ("zookeeper acl", Level.WARNING)
    assert found.advice.startswith(advice)


def test_nodes_that_stand_open_are_told(tmp_path: Path) -> None:
    """Nodes from before the credentials stay open until an operator closes them."""
    facts = replace(_FACTS, opened=("/consumers/b", "/consumers/a"))
    found = only(judge(facts, config(tmp_path, zookeeper=_DIGEST)))
    assert (found.check, found.level) == ("zookeeper acl", Level.WARNING)
    assert found.seen.startswith("2 nodes are open, such as /consumers/a")
    assert "setAcl -R" in found.advice


@pytest.mark.parametrize(
    ("facts", "check", "level"),
    [
        ({"version": "3.4.14"}, "zookeeper", Level.ERROR),
        ({"mode": "standalone"}, "zookeeper ensemble", Level.WARNING),
        ({"denied": ("/consumers/statistics",)}, "zookeeper access", Level.ERROR),
        ({"session_timeout": 4.0}, "zookeeper session", Level.WARNING),
        ({"skew": -30.0}, "clock", Level.WARNING),
    ],
)
def test_each_fault_of_an_ensemble_is_a_finding(
    tmp_path: Path, facts: dict[str, Any], check: str, level: Level
) -> None:
    """A fault is one finding with advice."""
    settings = config(tmp_path, zookeeper=_DIGEST)
    found = only(judge(replace(_FACTS, **facts), settings))
    assert (found.check, found.level) == (check, level)


@pytest.mark.parametrize(
    ("standbys", "members", "levels"),
    [(0, 1, []), (2, 0, []), (2, 3, [Level.OK]), (2, 2, [Level.WARNING])],
)
def test_standbys_of_a_group_with_too_few_members_are_told(
    tmp_path: Path, standbys: int, members: int, levels: list[Level]
) -> None:
    """A task has one standby less than its group has members; one that is stopped is not judged."""
    keyed = {"type": "keyed", "reducer": "m:f", "state": {"standbys": standbys}}
    sink = {"type": "kafka", "topic": "counts"}
    settings = config(tmp_path, {"processor": keyed, "sink": sink}, zookeeper=_DIGEST)
    (channel,) = settings.channels.values()
    facts = replace(_FACTS, children={GroupPaths(channel.group).ids: members})
    found = [each for each in judge(facts, settings) if each.check.startswith("standbys")]
    assert [each.level for each in found] == levels


def test_an_unknown_fact_is_no_fault(tmp_path: Path) -> None:
    """Servers may hide their version, and a chroot may not exist yet."""
    unknown: dict[str, Any] = {"version": None, "mode": None, "chroot_exists": False, "skew": None}
    settings = config(tmp_path, zookeeper={**_DIGEST, "chroot": "/headrace"})
    found = list(judge(replace(_FACTS, **unknown), settings))
    assert not bad(found)
    assert any("/headrace is made at the first start" in f.seen for f in found)


def test_a_skew_within_its_error_is_no_fault(tmp_path: Path) -> None:
    """A slow answer proves nothing about clocks."""
    facts = replace(_FACTS, skew=3.0, skew_error=2.0)
    assert not bad(judge(facts, config(tmp_path, zookeeper=_DIGEST)))


def test_an_ensemble_that_does_not_answer_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is told, and nothing else is asked."""

    def refuse(*_: object) -> ZooKeeperFacts:
        raise ZooKeeperUnavailableError("no session at zk:2181")

    monkeypatch.setattr(zookeeper, "survey", refuse)
    (found,) = check_zookeeper(config(tmp_path))
    assert (found.level, found.seen) == (Level.ERROR, "no session at zk:2181")


class _Survey:
    """Answers with one broker's settings, or not at all."""

    def __init__(self, settings: Mapping[str, str] | None) -> None:
        self._settings = settings

    def settings(self, *_: object) -> Mapping[str, str]:
        if self._settings is None:
            raise KafkaUnavailableError("Cluster authorization failed")
        return self._settings


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({"offsets.retention.minutes": "10080"}, Level.OK),
        ({"offsets.retention.minutes": "30"}, Level.ERROR),
        ({}, Level.WARNING),
        (None, Level.WARNING),
    ],
)
def test_offsets_have_to_be_kept_for_longer_than_they_idle(
    tmp_path: Path, settings: Mapping[str, str] | None, level: Level
) -> None:
    """An hour is what an idle partition's offset has to survive; not knowing is a warning."""
    survey: Any = _Survey(settings)
    (found,) = check_retention(config(tmp_path).channels, survey, 1)
    assert found.level is level


def test_only_offsets_that_are_kept_in_kafka_can_be_forgotten_there(tmp_path: Path) -> None:
    """With ZooKeeper's the brokers' retention is nothing to look at; a table has its own."""
    survey: Any = _Survey({"offsets.retention.minutes": "30"})
    nodes = config(tmp_path, {"offsets": "zookeeper"}).channels
    assert not list(check_retention(nodes, survey, 1))
    delta = {"type": "delta", "path": str(tmp_path / "table")}
    table = config(tmp_path, {"sink": delta}).channels
    assert only(check_retention(table, survey, 1)).level is Level.WARNING
    both = {**nodes, "plain": config(tmp_path).channels["flights"]}
    assert "those of plain would be forgotten" in only(check_retention(both, survey, 1)).seen


def test_topics_have_to_exist_and_to_have_ids(tmp_path: Path) -> None:
    """A missing topic and one without an id are errors, a pattern without topics a warning."""
    channel = config(tmp_path, {"topics": ["flights", "^alerts"]}).channels["flights"]
    flights = TopicInfo("flights", "AAAAAAAAAAAAAAAAAAAAAA", 8, internal=False)
    assert [f.level for f in judge_topics("t", channel, {})] == [Level.ERROR, Level.WARNING]
    (first, _) = judge_topics("t", channel, {}, known=["flihgts", "orders"])
    assert first.seen == "flights does not exist; did you mean flihgts?"
    old = bad(judge_topics("t", channel, {"flights": flights}))
    assert [f.level for f in old] == [Level.WARNING, Level.ERROR]
    assert "Kafka 2.8" in old[1].advice
    both = {
        "flights": replace(flights, topic_id="x"),
        "alerts.eu": TopicInfo("alerts.eu", "y", 1, internal=False),
    }
    (found,) = judge_topics("t", channel, both)
    assert found.seen == "topics and partitions: flights (8), alerts.eu (1)"


def test_topics_of_tasks_have_to_have_the_same_number_of_partitions(tmp_path: Path) -> None:
    """A channel that works in tasks has an error with the numbers, another one has none."""
    plain = config(tmp_path, {"topics": ["flights", "planes"]}).channels["flights"]
    found = {name: TopicInfo(name, "x", n) for name, n in (("flights", 8), ("planes", 6))}
    assert not bad(judge_topics("t", plain, found))
    tasked = plain.model_copy(update={"processor": TasksConfig()})
    [uneven] = bad(judge_topics("t", tasked, found))
    assert uneven.level is Level.ERROR
    assert uneven.seen == "they are not co-partitioned: flights has 8 partitions, planes 6"


def test_records_from_the_future_are_a_warning() -> None:
    """A minute ahead tells of a wrong clock; now, or no record at all, of nothing."""
    now = SYSTEM_CLOCK.time()
    assert only(check_stamps("t", now + 60)).level is Level.WARNING
    assert not list(check_stamps("t", now))
    assert not list(check_stamps("t", None))


def test_topics_that_a_channel_writes_to_have_to_exist(tmp_path: Path) -> None:
    """The dead letters' and the sink's; a channel without either is not asked for any."""
    broker = InMemoryBroker()
    catalog = broker.catalog()
    plain = config(tmp_path).channels["flights"]
    assert not list(check_written("flights", plain, catalog))
    policy = {"rejects": {"failing": "dead_letter", "topic": "flights.dead"}}
    sink = {"type": "kafka", "topic": "flights.late"}
    channel = config(tmp_path, {**policy, "sink": sink}).channels["flights"]
    found = list(check_written("flights", channel, catalog))
    assert [(each.level, each.seen) for each in found] == [
        (Level.ERROR, "flights.dead does not exist"),
        (Level.ERROR, "flights.late does not exist"),
    ]
    assert "rejects.topic" in found[0].advice
    assert "sink.topic" in found[1].advice
    broker.create_topic("flights.dead", 3)
    broker.create_topic("flights.late", 2)
    found = list(check_written("flights", channel, catalog))
    assert [(each.check, each.level, each.seen) for each in found] == [
        ("dead letters of channel flights", Level.OK, "flights.dead (3)"),
        ("sink of channel flights", Level.OK, "flights.late (2)"),
    ]


@pytest.mark.parametrize(
    ("settings", "replicas", "level", "words"),
    [
        ({}, 3, Level.OK, "several brokers"),
        ({"cleanup.policy": "compact,delete"}, 3, Level.ERROR, "states would be lost"),
        ({"cleanup.policy": "delete"}, 3, Level.ERROR, "is not compacted"),
        ({"delete.retention.ms": "1000"}, 3, Level.WARNING, "reads the whole changelog"),
        ({"max.message.bytes": "1000"}, 3, Level.WARNING, "the brokers refuse one"),
        ({"min.insync.replicas": "1"}, 1, Level.WARNING, "one replica"),
        ({"min.insync.replicas": "1"}, 2, Level.WARNING, "one broker alone"),
        ({"min.insync.replicas": "4"}, 3, Level.WARNING, "refuse all"),
    ],
)
def test_a_topic_setting_that_may_lose_state_is_a_finding(
    tmp_path: Path, settings: dict[str, str], replicas: int, level: Level, words: str
) -> None:
    """Clean-up, retention of deletions, sizes and replicas of a changelog count."""

    class Catalog:
        """Knows one changelog."""

        def describe(self, topics: Collection[str], deadline: Deadline) -> dict[str, TopicInfo]:
            """Return it."""
            del deadline
            return {name: TopicInfo(name, "x", 8, replicas=replicas) for name in topics}

        def settings(self, topic: str, deadline: Deadline) -> dict[str, str]:
            """Return what a good one has, but for what is given."""
            del topic, deadline
            return {**CHANGELOG_SETTINGS, "min.insync.replicas": "2", **settings}

    keyed = {"type": "keyed", "engine": "arrow", "reducer": "m:f"}
    changes = {"processor": keyed, "topics": ["in"], "sink": None}
    channel = config(tmp_path, changes).channels["flights"]
    (found,) = check_internal("flights", channel, Catalog())  # type: ignore[arg-type]
    assert found.level is level
    assert words in found.seen
    assert found.advice or level is Level.OK


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("none", ""),
        ("deleted", "was deleted, and had the id id-2"),
        ("made again", "is another topic than the one with its rows"),
        ("cut", "begins at offset 2, and its rows began at 0"),
        ("shortened", "ends at offset 1, and rows up to 3 were committed"),
        ("grown again", "lost its end before offset 3"),
        ("more partitions", "has 3 partitions, and the state in g.in.state is for 2"),
        ("another key", "is of key: value.id, and the channel has key: record now"),
        ("forgotten", "has the state of partition 0, and nothing says which records it is of"),
        (
            "another input",
            "has the state of partition 0, and nothing says which records it is of",
        ),
    ],
)
def test_lost_state_is_a_finding(tmp_path: Path, harm: str, words: str) -> None:
    """The stored offset shows it, for a running channel and for a stopped one."""
    broker = InMemoryBroker()
    for topic in ("in", "g.in.state"):
        broker.create_topic(topic, 2)
    log = TopicPartition("g.in.state", 0)
    broker.produce(log, b"1", b"2", b"3")
    mark = ChangelogMark("id-2", 0, 2, has_rows=True, end=3, leader_epoch=0)
    if harm == "another key":
        mark = replace(mark, key="value.id")
    _harm(broker, log, harm)

    def stored(names: Collection[str], deadline: Deadline) -> dict[str, StoredOffset]:
        """Return an offset of the first partition."""
        del deadline
        return {
            name: StoredOffset(3, 0, commits=3, changelog=mark)
            for name in names
            if name.endswith("id-1/0") and harm != "forgotten"
        }

    keyed = {"type": "keyed", "engine": "arrow", "reducer": "m:f"}
    changes = {"processor": keyed, "topics": ["in"], "group": "g", "sink": None}
    channel = config(tmp_path, changes).channels["flights"]
    found = list(check_state("flights", channel, broker.catalog(), stored))
    assert [each.level for each in found] == [Level.ERROR] * bool(words)
    assert words in " ".join(each.seen for each in found)
    assert all("headrace state" in each.advice for each in found)


def _harm(broker: InMemoryBroker, log: TopicPartition, harm: str) -> None:
    if harm in {"shortened", "grown again"}:
        broker.truncate(log, 1)
    if harm == "grown again":
        broker.produce(log, *[b"other"] * 3)
    if harm in {"deleted", "made again"}:
        broker.delete_topic("g.in.state")
    if harm == "made again":
        broker.create_topic("g.in.state", 2)
    if harm == "cut":
        broker.expire(log, 2)
    if harm == "more partitions":
        broker.create_topic("in", 3)
    if harm == "another input":
        broker.delete_topic("in")
        broker.create_topic("in", 2)


@pytest.mark.parametrize(
    ("processor", "step"),
    [
        ({"type": "keyed", "engine": "arrow", "reducer": "m:f"}, "headrace state import"),
        ({"type": "spark", "reducer": "m:f"}, "headrace offsets reset"),
    ],
)
def test_offsets_of_another_topic_are_a_finding(
    tmp_path: Path, processor: dict[str, Any], step: str
) -> None:
    """The id shows that it was made again or mirrored; those without an id are not doubted."""
    sink = None if processor["type"] == "keyed" else "noop"
    document = {"processor": processor, "topics": ["in"], "sink": sink}
    channel = config(tmp_path, document).channels["flights"]
    places = [TopicPartition("in", number) for number in range(3)]
    ids = dict(zip(places, ("id-1", "id-2", None), strict=True))
    stored = {place: StoredOffset(3, 0, topic_id=ids[place]) for place in places}
    topics = {"in": TopicInfo("in", "id-1", 3)}
    found = only(judge_offsets("group", channel, stored, topics))
    assert found.level is Level.WARNING
    assert "offsets of 1 partitions of in are of a topic with another id" in found.seen
    assert step in found.advice
    del stored[places[1]]
    assert not list(judge_offsets("group", channel, stored, topics))


def test_the_topic_for_shed_records_has_to_exist(tmp_path: Path) -> None:
    """The advice names its configuration field."""
    broker = InMemoryBroker()
    rejects = {"overflow": "dead_letter", "topic": "flights.shed"}
    processor = {"type": "keyed", "reducer": "a:b"}
    document = {"processor": processor, "sink": None, "rejects": rejects}
    channel = config(tmp_path, document).channels["flights"]
    found = only(check_written("flights", channel, broker.catalog()))
    assert (found.check, found.level) == ("dead letters of channel flights", Level.ERROR)
    assert "rejects.topic" in found.advice
    broker.create_topic("flights.shed", 1)
    (found,) = check_written("flights", channel, broker.catalog())
    assert (found.level, found.seen) == (Level.OK, "flights.shed (1)")


def test_rows_that_name_their_topics_are_not_looked_for(tmp_path: Path) -> None:
    """A Kafka sink without a topic of its own has none that could be missing."""
    channel = config(tmp_path, {"sink": {"type": "kafka"}}).channels["flights"]
    assert not list(check_written("flights", channel, InMemoryBroker().catalog()))


def _keyed(*placed: tuple[bytes | None, int]) -> list[FakeRecord]:
    """Return records with keys in partitions of twelve."""
    return [FakeRecord(topic_="t", key_=key, partition_=number) for key, number in placed]


#: Keys in the partitions that Java's ``Utils.murmur2`` gives them, of twelve.
_AT_HOME = ((b"", 9), (b"\xe9\x44", 7))


@pytest.mark.parametrize(
    ("placed", "level", "words"),
    [
        (_AT_HOME, Level.OK, "t: 2 of 2 records are where their keys belong"),
        (
            (*_AT_HOME, (b"", 9), (b"k", 0), (b"k", 0)),
            Level.WARNING,
            "t: 2 of 5 records are in another partition than Java's producers put them: ",
        ),
        (
            (*_AT_HOME, (b"", 8)),
            Level.ERROR,
            (
                "1 of 3 records are in another partition than Java's producers put them, and "
                "1 of 2 keys are in several"
            ),
        ),
        (((None, 3), (None, 4)), Level.ERROR, "t: 2 of 2 records have no key"),
    ],
)
def test_records_that_are_not_where_their_keys_belong_are_told(
    placed: tuple[tuple[bytes | None, int], ...], level: Level, words: str
) -> None:
    """How many of how many, and what to do; a key in several partitions is an error."""
    (found,) = judge_partitioner("keys", "t", 12, _keyed(*placed))
    assert (found.level, words in found.seen) == (level, True), found.seen
    assert level is Level.OK or "set processor.key" in found.advice


def test_no_records_say_nothing_of_their_keys() -> None:
    """An empty topic is neither right nor wrong."""
    assert not list(judge_partitioner("keys", "t", 12, []))


def test_a_by_key_topic_need_not_exist(tmp_path: Path) -> None:
    """The re-keying channel creates the topic, so neither channel reports it missing."""
    processor = {"type": "keyed", "reducer": "a:b", "key": "value.id"}
    sink = {"type": "kafka", "topic": "out"}
    channels = config(tmp_path, {"processor": processor, "sink": sink}).channels
    first, second = channels["flights.rekey"], channels["flights"]
    (made,) = second.topics
    catalog = InMemoryBroker().catalog()
    (found,) = judge_topics("t", second, {}, {made})
    assert (found.level, found.seen) == (Level.OK, f"{made} is created at the start")
    assert [each.level for each in check_written("one", first, catalog, {made})] == [Level.OK]
    assert only(check_written("one", first, catalog)).level is Level.ERROR


def _topology(folder: Path, **channel: Any) -> Config:
    """Build a configuration with a topology of three channels, and no other channel."""
    code = "tests.unit.extensions.streams.programs:top_pages"
    section = {"code": code, "group": "shop", "channel": channel}
    settings = config(folder, topologies={"top": section})
    channels = {name: each for name, each in settings.channels.items() if name != "flights"}
    return settings.model_copy(update={"channels": channels})


def test_topics_by_key_of_a_topology_need_not_exist(tmp_path: Path) -> None:
    """The channels that write them create them, unless the configuration says otherwise."""
    made = {"shop.pages.by-key", "shop.top.by-key"}
    assert made_at_the_start(_topology(tmp_path)) == made
    settings = _topology(tmp_path, processor={"internal": {"create": False}})
    assert made_at_the_start(settings) == frozenset()
    catalog: Any = InMemoryBroker().catalog()
    found = list(check_internal("top.pages", settings.channels["top.pages"], catalog))
    assert [(each.check, each.seen, each.advice) for each in found] == [
        (
            "state of channel top.pages",
            "shop.pages.by-key.state does not exist",
            "headrace state topics --create makes it",
        ),
        (
            "records by key of channel top.pages",
            "shop.top.by-key does not exist",
            "headrace topics create makes it",
        ),
    ]


def test_topics_that_a_topology_writes_have_to_exist(tmp_path: Path) -> None:
    """They are named by its code, where the name may be corrected."""
    broker = InMemoryBroker()
    last = _topology(tmp_path).channels["top.top"]
    found = only(check_written("top.top", last, broker.catalog()))
    assert (found.level, found.seen) == (Level.ERROR, "top-pages does not exist")
    assert "correct the code that names it" in found.advice
    broker.create_topic("top-pages", 2)
    (found,) = check_written("top.top", last, broker.catalog())
    assert (found.check, found.seen) == ("outputs of channel top.top", "top-pages (2)")
