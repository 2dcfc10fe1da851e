"""A second cluster as a spare: topics that a mirror brings, and the state of a channel there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.records import TopicPartition
from headrace.devstack import Blueprint, LocalStack
from headrace.extensions.keyed.names import changelog_name
from headrace.kafka.result_transactions import sink_group
from headrace.testing.records import FakeRecord
from tests.brokers import Broker
from tests.integration.daemon.rig import Site
from tests.integration.daemon.test_offsets import quiet
from tests.integration.extensions.keyed.test_commands import Rig, all_at
from tests.integration.extensions.keyed.test_state import KEYS
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["quiet"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def spare(site: Site, tmp_path: Path) -> Iterator[Site]:
    """Return the same topic and group on a cluster of its own, where nothing is yet."""
    folder = tmp_path / "spare"
    folder.mkdir()
    blueprint = Blueprint(short_lived=True)
    with LocalStack.start(folder / "servers", blueprint=blueprint) as stack:
        found = Site(Broker(stack.bootstrap_servers), stack.zookeeper_hosts, folder)
        found.group, found.topic = site.group, found.broker.create_topic(2, site.topic)
        yield found
        found.close()


def mirror(source: Site, target: Site, topic: str, first: int = 0) -> None:
    """Bring what is committed of a topic from one cluster to the other, from offsets on.

    As a mirror does: partitions are the same, and offsets count what it brought.
    """
    for each in committed_records(source.broker.address, topic):
        number, offset = each.partition(), each.offset()
        assert number is not None
        assert offset is not None
        if offset >= first:
            # the client's types say that headers may be texts, and a mapping
            headers: Any = each.headers()
            record = FakeRecord(key_=each.key(), value_=each.value(), headers_=headers)
            target.broker.produce(TopicPartition(topic, number), record)


def mirror_group(source: Site, target: Site, group: str) -> None:
    """Bring the offsets of a group, with other numbers, and what was written beside them."""
    places = [source.partition(number) for number in (0, 1)]
    for place, stored in zip(places, source.broker.committed(group, *places), strict=True):
        assert stored is not None
        target.broker.commit(group, place, target.broker.end(place), stored.metadata)


def findings(rig: Rig, check: str, level: str) -> list[str]:
    """Return what the doctor has to say of a check at a level."""
    done = CliRunner().invoke(app, ["doctor", "-c", str(rig.file), "--json"])
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return [each["seen"] for each in found if (each["check"], each["level"]) == (check, level)]


def errors(rig: Rig) -> list[str]:
    """Return what the doctor finds wrong with the state."""
    return findings(rig, "state of channel main", "error")


def test_counts_go_on_in_a_second_cluster_after_an_import(site: Site, spare: Site) -> None:
    """Mirrored rows are refused by the topics' ids; with an export each fact counts once."""
    rig = Rig(site)
    daemon = rig.start()
    rig.count(daemon)
    later = min(site.broker.end(site.partition(number)) for number in (0, 1))
    rig.count(daemon, 2)
    rig.stop(daemon)
    file = str(site.directory / "state.jsonl")
    rig.run("export", file)
    other = Rig(spare)
    # the mirror was set up after the first facts, which the offsets of the spare do not count
    mirror(site, spare, site.topic, later)
    for group in (site.group, sink_group(site.group)):
        mirror_group(site, spare, group)
    (doubt,) = findings(other, "group of channel main", "warning")
    assert f"offsets of 2 partitions of {site.topic} are of a topic with another id" in doubt
    other.run("topics", "--create")
    assert errors(other) == []
    mirror(site, spare, changelog_name(site.group, site.topic))
    found = errors(other)
    assert len(found) == 2, found
    assert all("nothing says which records it is of" in each for each in found)
    resting = other.start()
    seen = resting.wait_event("state_without_offset")
    assert "the input is another topic of the same name" in seen["reason"]
    other.stop(resting)
    assert committed_records(spare.broker.address, other.output) == []
    refused = other.run("import", file, "--replace", expect=2).stderr
    assert "is of another topic, with the id" in refused
    other.run("import", file, "--replace", "--offsets", "latest")
    assert errors(other) == findings(other, "group of channel main", "warning") == []
    again = other.start()
    # those of the input that were mirrored are in the file's counts
    other.facts = sum(spare.broker.end(spare.partition(number)) for number in (0, 1))
    other.count(again)
    assert other.listed() == all_at(4)
    other.stop(again)
    assert other.run("verify").exit_code == 0
    assert len(committed_records(spare.broker.address, other.output)) == len(KEYS)
