"""Daemons with state whose topics are deleted, made again, and given more partitions."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from headrace.config import load
from headrace.coordinators.group_nodes import read_members
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.names import by_key_topic, changelog_name
from headrace.kafka.result_transactions import sink_group
from headrace.ops.offsets.commands import zookeeper_session
from headrace.testing.records import FakeRecord
from tests.integration.extensions.keyed.test_commands import Rig, all_at
from tests.integration.extensions.keyed.test_daemon import arrived, rows
from tests.integration.extensions.keyed.test_rekey import orders, send
from tests.integration.extensions.keyed.test_state import KEYS, WAIT
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Daemon, Site

pytestmark = pytest.mark.timeout(300)

#: Less than the effects of a command that changes state: it joins, claims, fences and commits.
EFFECTS = 20


def not_ready(site: Site) -> str:
    """Return why the process is not ready."""
    record = json.loads((site.directory / "state" / "one" / "admin.json").read_text("utf-8"))
    answer = httpx.get(f"{record['url']}/health/ready", trust_env=False, timeout=WAIT)
    return "" if answer.is_success else " ".join(answer.json()["reasons"])


def at_risk(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the events that say so."""
    return [each for each in daemon.events() if each["event"] == "state_at_risk"]


def produce(site: Site, partitions: int) -> None:
    """Produce a fact of each key, as a producer does that knows of so many partitions."""
    for name in (key.encode() for key in KEYS):
        place = TopicPartition(site.topic, partition_of(name, partitions))
        site.broker.produce(place, FakeRecord(key_=name, value_=b"v"))


def test_a_changelog_that_is_made_again_is_written_from_the_local_store(site: Site) -> None:
    """No key is counted from 0: all rest, not ready, and afterwards each fact counts once."""
    rig = Rig(site)
    changelog = changelog_name(site.group, site.topic)
    daemon = rig.start()
    rig.count(daemon, 2)
    site.broker.delete_topic(changelog)
    assert wait_for(lambda: changelog not in site.broker.topics(), Deadline.after(WAIT))
    produce(site, 2)
    daemon.wait_event("state_at_risk")
    assert wait_for(lambda: "with all rows of the state" in not_ready(site), Deadline.after(WAIT))
    assert "has members" in rig.run("restore", "--from-store", expect=3).stderr
    rig.stop(daemon)
    again = rig.start()
    found = wait_for(lambda: len(at_risk(again)) == 2, Deadline.after(WAIT))
    assert found, again.text()
    assert {each["partition"] for each in at_risk(again)} == {0, 1}
    assert "is another topic than the one with its rows" in not_ready(site)
    rig.stop(again)
    assert "error: " in rig.run("topics", expect=1).stdout
    assert "say what is to be written" in rig.run("restore", expect=2).stderr
    assert f"keys written to {changelog}" in rig.run("restore", "--from-store").stdout
    assert "nothing is missing" in rig.run("restore", "--from-store").stdout
    assert rig.run("topics").exit_code == 0
    assert rig.states() == {key.encode(): {"n": 2} for key in KEYS}
    rig.facts += len(KEYS)
    last = rig.start()
    rig.outputs += len(KEYS)
    arrived(site, last, rig.output, rig.outputs)
    rig.count(last)
    assert rig.listed() == all_at(4)
    rig.stop(last)
    assert rig.run("verify").exit_code == 0


def test_topics_tells_what_is_lost_of_each_channel(site: Site) -> None:
    """A changelog that is gone is not one that never was, and keeps no other from being told."""
    rig = Rig(site)
    changelog = changelog_name(site.group, site.topic)
    daemon = rig.start()
    rig.count(daemon)
    rig.stop(daemon)
    other = {**rig.config["channels"]["main"], "group": f"{site.group}.other"}
    channels = {**rig.config["channels"], "other": other}
    rig.file.write_text(json.dumps({**rig.config, "channels": channels}), encoding="utf-8")
    assert rig.run("topics", "--create").exit_code == 0
    site.broker.delete_topic(changelog)
    assert wait_for(lambda: changelog not in site.broker.topics(), Deadline.after(WAIT))
    site.broker.delete_topic(changelog_name(other["group"], site.topic))
    found = rig.run("topics", expect=1)
    assert f"error: topic {changelog} was deleted, and had the id" in found.stdout
    assert f"topic {changelog}, the state of" not in found.stderr
    assert "other: " in found.stderr
    assert "does not exist; create it compacted" in found.stderr
    assert "another topic than the one" in rig.run("topics", "--create", expect=1).stdout


def test_a_state_whose_offset_is_forgotten_goes_on_where_it_is_told(site: Site) -> None:
    """It is an error before a start; no export says that it is of the records that are there."""
    rig = Rig(site)
    daemon = rig.start()
    rig.count(daemon)
    rig.stop(daemon)
    site.broker.delete_groups(site.group, sink_group(site.group))
    said = rig.run("topics", expect=1).stdout
    assert said.count("and nothing says which records it is of") == 2
    file = str(site.directory / "forgotten.jsonl")
    exported = rig.run("export", file).stderr
    assert "no offset is stored for partitions 0, 1, so nothing says which records" in exported
    refused = rig.run("import", file, "--replace", expect=2).stderr
    assert "say where to go on with --offsets" in refused
    rig.run("import", file, "--replace", "--offsets", "latest")
    assert rig.run("topics").exit_code == 0
    again = rig.start()
    rig.count(again)
    assert rig.listed() == all_at(2)
    rig.stop(again)


def test_an_input_with_more_partitions_rests_until_keys_are_moved(site: Site) -> None:
    """No key has two states, before and after; what came meanwhile counts once."""
    rig = Rig(site)
    daemon = rig.start()
    rig.count(daemon, 2)
    site.broker.add_partitions(site.topic, 3)
    produce(site, 3)
    daemon.wait_event("state_at_risk")
    assert "headrace state repartition" in not_ready(site)
    assert "has members" in rig.run("repartition", expect=3).stderr
    assert rig.states() == {key.encode(): {"n": 2} for key in KEYS}
    rig.stop(daemon)
    assert len(at_risk(daemon)) == 1
    assert "partitions, and the state in" in rig.run("topics", expect=1).stdout
    said = rig.run("repartition").stdout
    moved = sum(partition_of(key.encode(), 2) != partition_of(key.encode(), 3) for key in KEYS)
    assert f"{moved} of {len(KEYS)} keys moved, from 2 to 3 partitions, as murmur2 puts" in said
    assert "each key is where it belongs" in rig.run("repartition").stdout
    again = rig.start()
    rig.outputs += len(KEYS)
    arrived(site, again, rig.output, rig.outputs)
    produce(site, 3)
    rig.outputs += len(KEYS)
    arrived(site, again, rig.output, rig.outputs)
    assert wait_for(lambda: rig.listed() == all_at(4), Deadline.after(WAIT))
    rig.stop(again)
    found = committed_records(site.broker.address, changelog_name(site.group, site.topic))
    last = {(each.partition(), each.key()): each.value() for each in found}
    there = [(number, key) for (number, key), value in last.items() if value is not None]
    assert sorted(there) == sorted((partition_of(key.encode(), 3), key.encode()) for key in KEYS)
    assert rig.run("verify").exit_code == 0


def test_unread_records_where_keys_belonged_before_are_not_counted_from_nothing(
    site: Site,
) -> None:
    """They are named, and nothing is moved; written again they count where their keys are."""
    rig = Rig(site)
    daemon = rig.start()
    rig.count(daemon)
    rig.stop(daemon)
    produce(site, 2)
    site.broker.add_partitions(site.topic, 3)
    produce(site, 3)
    before = rig.states()
    refused = rig.run("repartition", expect=2).stderr
    strays = sum(partition_of(key.encode(), 2) != partition_of(key.encode(), 3) for key in KEYS)
    assert f"{strays} unread records of {site.topic} are where their keys belonged" in refused
    assert rig.states() == before
    said = rig.run("repartition", "--rewrite").stdout
    assert f"; {2 * len(KEYS)} unread records written again" in said
    again = rig.start()
    rig.outputs += 2 * len(KEYS)
    arrived(site, again, rig.output, rig.outputs)
    assert wait_for(lambda: rig.listed() == all_at(3), Deadline.after(WAIT))
    rig.stop(again)


def killed_at_every_effect(rig: Rig, command: str) -> int:
    """Run a command again and again until it is not killed any more; return how often it was."""
    killed = [sys.executable, "-m", "tests.integration.extensions.keyed.killed_commands"]
    done = subprocess.run([*killed, command, str(rig.file)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return int(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_changelog_has_each_row_once_wherever_its_restore_is_killed(site: Site) -> None:
    """Run again it does what is left: no count begins from 0, and each fact counts once."""
    rig = Rig(site)
    changelog = changelog_name(site.group, site.topic)
    daemon = rig.start()
    rig.count(daemon, 2)
    rig.stop(daemon)
    site.broker.delete_topic(changelog)
    assert wait_for(lambda: changelog not in site.broker.topics(), Deadline.after(WAIT))
    assert killed_at_every_effect(rig, "restore") > EFFECTS
    assert rig.states() == {key.encode(): {"n": 2} for key in KEYS}
    assert len(committed_records(site.broker.address, changelog)) == len(KEYS)
    again = rig.start()
    rig.count(again)
    assert rig.listed() == all_at(3)
    rig.stop(again)
    assert rig.run("verify").exit_code == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_keys_are_moved_once_wherever_the_command_is_killed(site: Site) -> None:
    """Run again it does what is left: each key is in one place, and each fact counts once."""
    rig = Rig(site)
    daemon = rig.start()
    rig.count(daemon)
    rig.stop(daemon)
    produce(site, 2)
    site.broker.add_partitions(site.topic, 3)
    produce(site, 3)
    assert killed_at_every_effect(rig, "repartition") > EFFECTS
    again = rig.start()
    rig.outputs += 2 * len(KEYS)
    arrived(site, again, rig.output, rig.outputs)
    assert wait_for(lambda: rig.listed() == all_at(3), Deadline.after(WAIT))
    rig.stop(again)
    assert len(rows(site, rig.output)) == rig.outputs
    assert rig.run("verify").exit_code == 0


@pytest.mark.slow
def test_a_by_key_topic_with_more_partitions_keeps_each_key_together(site: Site) -> None:
    """Unread records are written again without an option for it: the topic has no other reader."""
    rig = Rig(site, {"key": "value.customer.id", "value": "json"})
    topic = by_key_topic(site.group, site.topic)
    daemon = rig.start()
    sent = orders(100, 1)
    send(site, sent)
    arrived(site, daemon, rig.output, 100)
    rig.run("topics")
    daemon.kill()
    more = orders(100, 2)
    send(site, more)
    site.broker.add_partitions(topic, 3)
    rekeying = wait_for(lambda: not members(rig), Deadline.after(WAIT))
    assert rekeying
    rig.run("repartition")
    again = rig.start()
    arrived(site, again, rig.output, 200)
    rig.stop(again)
    counts: dict[bytes, list[int]] = {}
    for key, value in rows(site, rig.output):
        counts.setdefault(key, []).append(value["n"])
    assert sum(map(len, counts.values())) == 200
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())


@pytest.mark.slow
def test_another_field_as_key_is_refused_with_the_same_group(site: Site) -> None:
    """The refused daemon writes nothing and names both keys; the former one goes on."""
    rig = Rig(site, {"key": "value.customer.id", "value": "json"})
    daemon = rig.start()
    send(site, orders(50, 1))
    arrived(site, daemon, rig.output, 50)
    rig.stop(daemon)
    channel = rig.config["channels"]["main"]
    other = {**channel, "processor": {**channel["processor"], "key": "value.id"}}
    refused = site.daemon({**rig.config, "channels": {"main": other}}).start()
    assert refused.wait() != 0
    said = "is of key: value.customer.id, and the channel has key: value.id now"
    assert said in refused.text()
    again = rig.start()
    send(site, orders(50, 2))
    arrived(site, again, rig.output, 100)
    rig.stop(again)
    assert len(rows(site, rig.output)) == 100


def members(rig: Rig) -> bool:
    """Whether the groups still have the member that was killed."""
    config = load(rig.file)
    with zookeeper_session(config) as session:
        return any(read_members(session, each.group) for each in config.channels.values())
