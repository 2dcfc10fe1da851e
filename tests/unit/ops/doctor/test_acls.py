from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ops.doctor.acls import Acl, commands, literal_beginning, needed_acls, principal
from tests.unit.ops.doctor.support import config

if TYPE_CHECKING:
    from pathlib import Path


def test_a_channel_reads_its_topics_and_its_group(tmp_path: Path) -> None:
    """The defaults need no further rights."""
    assert needed_acls(config(tmp_path)) == [
        Acl("topic", "flights", ("Read",)),
        Acl("group", "statistics", ("Read",)),
    ]


def test_a_pattern_needs_topics_with_its_prefix(tmp_path: Path) -> None:
    """The literal beginning is the prefix; a pattern without one needs every topic."""
    acls = needed_acls(config(tmp_path, {"topics": [r"^alerts\.", "^(a|b)"]}))
    assert acls[:2] == [
        Acl("topic", "alerts.", ("Read",), prefixed=True),
        Acl("topic", "*", ("Read",)),
    ]


def test_offsets_decide_about_the_group(tmp_path: Path) -> None:
    """In ZooKeeper the group is only looked at; transactions need the ids of the whole group."""
    kept = needed_acls(config(tmp_path, {"offsets": "zookeeper"}))
    assert Acl("group", "statistics", ("Describe",)) in kept
    fenced = needed_acls(config(tmp_path, {"offsets": {"fencing": "transactions"}}))
    assert fenced[-1] == Acl("transactional-id", "headrace.statistics.", ("Write",), prefixed=True)


def test_dead_letters_are_written(tmp_path: Path) -> None:
    """The dead-letter topic is the one topic that a channel writes to."""
    policy = {"rejects": {"failing": "dead_letter", "topic": "flights.dead"}}
    acls = needed_acls(config(tmp_path, {**policy}))
    assert acls[1] == Acl("topic", "flights.dead", ("Write",))


def test_the_topic_for_shed_records_is_written(tmp_path: Path) -> None:
    """A channel that sheds records needs the right to write copies of them."""
    processor = {"type": "keyed", "reducer": "a:b"}
    rejects = {"overflow": "dead_letter", "topic": "flights.shed"}
    document = {"processor": processor, "sink": None, "rejects": rejects}
    acls = needed_acls(config(tmp_path, document))
    assert Acl("topic", "flights.shed", ("Write",)) in acls


def test_state_by_key_has_topics_of_its_own(tmp_path: Path) -> None:
    """Changelog and by-key topic are created, read and written, and what is processed deleted."""
    processor = {
        "type": "keyed",
        "reducer": "a:b",
        "key": "value.id",
    }
    rejects = {"failing": "dead_letter", "topic": "dead"}
    document = {"processor": processor, "sink": None, "rejects": rejects}
    acls = needed_acls(config(tmp_path, document))
    made, state = "statistics.flights.by-key", "statistics.flights.by-key.state"
    assert {
        Acl("topic", "flights", ("Read",)),
        Acl("topic", made, ("Create", "DescribeConfigs")),
        Acl("topic", made, ("Write",)),
        Acl("topic", made, ("Read",)),
        Acl("topic", made, ("Delete",)),
        Acl("topic", state, ("Create", "DescribeConfigs", "Read", "Write")),
        Acl("topic", "dead", ("Write",)),
        Acl("group", "statistics.sink", ("Read",)),
        Acl("group", "statistics.rekey.sink", ("Read",)),
        Acl("transactional-id", "headrace.statistics.", ("Write",), prefixed=True),
    } <= set(acls)


def test_a_topology_writes_by_key_and_to_its_outputs(tmp_path: Path) -> None:
    """Each channel creates and writes its topics by key, and deletes from those that it reads."""
    code = "tests.unit.extensions.streams.programs:top_pages"
    settings = config(tmp_path, topologies={"top": {"code": code, "group": "shop"}})
    channels = {name: each for name, each in settings.channels.items() if name != "flights"}
    acls = needed_acls(settings.model_copy(update={"channels": channels}))
    first, second = "shop.pages.by-key", "shop.top.by-key"
    transactions = Acl("transactional-id", "headrace.shop.top.", ("Write",), prefixed=True)
    assert {
        Acl("topic", "clicks", ("Read",)),
        Acl("topic", "clicks", ("DescribeConfigs",)),
        Acl("topic", first, ("Create", "DescribeConfigs", "Write")),
        Acl("topic", second, ("Create", "DescribeConfigs", "Write")),
        Acl("topic", "top-pages", ("Write",)),
        Acl("topic", f"{first}.state", ("Create", "DescribeConfigs", "Read", "Write")),
        Acl("group", "shop.top.sink", ("Read",)),
        transactions,
    } <= set(acls)
    assert [each.name for each in acls if "Delete" in each.operations] == [first, second]


def test_a_kafka_sink_writes_and_keeps_offsets(tmp_path: Path) -> None:
    """The sink writes to its topic, or to any, and keeps offsets in a group of its own."""
    spark = {"type": "spark", "reducer": "a:b"}
    for topic, name in (("late", "late"), (None, "*")):
        sink = {"type": "kafka", "topic": topic}
        acls = needed_acls(config(tmp_path, {"processor": spark, "sink": sink}))
        several = {"type": "several", "outputs": {"a": sink, "b": "noop"}}
        assert needed_acls(config(tmp_path, {"processor": spark, "sink": several})) == acls
        assert acls[1:] == [
            Acl("topic", name, ("Write",)),
            Acl("group", "statistics.sink", ("Read",)),
            Acl("transactional-id", "headrace.statistics.", ("Write",), prefixed=True),
            Acl("group", "statistics", ("Read",)),
        ]


def test_commands_name_user_and_resource(tmp_path: Path) -> None:
    """Each is ready to run, with quotes where a shell needs them."""
    sasl = {"mechanism": "PLAIN", "username": "head race", "password": "hunter2"}
    settings = config(tmp_path, kafka={"bootstrap_servers": "broker:9092", "sasl": sasl})
    first, *_ = commands(settings, needed_acls(settings))
    assert first == (
        "kafka-acls.sh --bootstrap-server broker:9092 --command-config admin.properties --add "
        "--allow-principal 'User:head race' --operation Read --topic flights"
    )
    assert "hunter2" not in first


def test_a_certificate_stands_for_its_subject(tmp_path: Path) -> None:
    """Without a user name the brokers go by the certificate, or by nothing."""
    tls = {"certificate_file": "c.pem", "key_file": "k.pem"}
    assert "certificate_file" in principal(config(tmp_path, kafka={"tls": tls}).kafka)
    assert principal(config(tmp_path).kafka) == "User:ANONYMOUS"


@pytest.mark.parametrize(
    ("pattern", "beginning"),
    [
        (r"^alerts\.", "alerts."),
        ("^alerts.*", "alerts"),
        ("^ab*c", "a"),
        ("^a|b", ""),
        (r"^\d+", ""),
        ("^flights$", "flights"),
        ("^.*", ""),
    ],
)
def test_the_literal_beginning_of_a_pattern(pattern: str, beginning: str) -> None:
    """It ends with the first sign that stands for more than itself."""
    assert literal_beginning(pattern) == beginning


@given(st.text("abc.*+?|()\\{}01", max_size=8).map("^".__add__), st.data())
def test_all_that_a_pattern_matches_begins_like_it(pattern: str, data: st.DataObject) -> None:
    """No topic that a pattern can match is left out of the permission."""
    try:
        re.compile(pattern)
    except re.error:
        return
    name = data.draw(st.text("abc.0123", max_size=8))
    if re.match(pattern, name):
        assert name.startswith(literal_beginning(pattern))
