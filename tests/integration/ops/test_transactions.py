"""``headrace transactions`` on real servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition
from typer.testing import CliRunner

from headrace.cli import app
from headrace.kafka.result_transactions import sink_group
from tests.doubts import leave_in_doubt
from tests.integration.daemon.conftest import broker, site
from tests.integration.daemon.rig import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from headrace.core.records import TopicPartition
    from tests.integration.daemon.rig import Site

__all__ = ["broker", "site"]

WAIT = 30.0


class Rig:
    """A channel of a test's own, and the commands on its configuration."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.prefix = f"headrace.{site.group}."
        self.file: Path = site.directory / "headrace.yaml"
        self.document: dict[str, Any] = site.document(offsets={"fencing": "transactions"})
        self.write()

    def write(self) -> None:
        """Write the configuration."""
        self.file.write_text(json.dumps(self.document), encoding="utf-8")

    def run(self, *arguments: str, expect: int = 0, answer: str | None = None) -> Result:
        """Run a command; its exit code is the one that is expected."""
        command = ["transactions", *arguments, "-c", str(self.file)]
        result = CliRunner().invoke(app, command, input=answer)
        assert result.exit_code == expect, result.output
        return result

    def listed(self, *more: str) -> dict[str, Any]:
        """Return what list shows, the transactions by their ids."""
        found = json.loads(self.run("list", "--json", *more).stdout)
        by_id = {each["transactional_id"]: each for each in found["transactions"]}
        return {**found, "transactions": by_id}

    def open(self, transactional_id: str, partition: TopicPartition) -> Producer:
        """Leave a transaction open that has a record of a partition."""
        producer = Producer(
            {
                "bootstrap.servers": self.site.broker.address,
                "transactional.id": transactional_id,
                "log_level": 0,
            }
        )
        producer.init_transactions(WAIT)
        producer.begin_transaction()
        producer.produce(partition.topic, b"open", partition=partition.partition)
        producer.flush(WAIT)
        return producer


@pytest.fixture
def rig(site: Site) -> Rig:
    """A channel that does not run."""
    return Rig(site)


def test_an_open_transaction_is_listed_and_aborted(rig: Rig) -> None:
    """With its state, its partitions and what it holds back; its producer is refused then."""
    partition = rig.site.partition(1)
    assert "no open transactions" in rig.run("list").stdout
    rig.site.broker.produce(partition, b"before")
    producer = rig.open(f"{rig.prefix}gone.7", partition)

    listed = rig.listed()
    (found,) = listed["transactions"].values()
    assert (found["state"], found["open"], found["owner"]) == ("ongoing", True, None)
    assert (found["partitions"], found["of_the_group"]) == ([str(partition)], True)
    assert (found["producer_id"] >= 0, found["overdue"]) == (True, False)
    (held,) = listed["held_back"]
    assert (held["partition"], held["readable_to"], held["end"]) == (1, 1, 2)
    assert held["transactional_ids"] == [f"{rig.prefix}gone.7"]
    assert f"held back by {rig.prefix}gone.7" in rig.run("list").stdout

    assert (
        "nothing was changed"
        in rig.run("abort", f"{rig.prefix}gone.7", expect=2, answer="n\n").output
    )
    assert rig.listed()["transactions"]
    assert "has no open transaction" in rig.run("abort", f"{rig.prefix}gone.7", "--yes").stdout
    assert rig.listed() == {**listed, "transactions": {}, "held_back": []}
    assert rig.listed("--all")["transactions"][f"{rig.prefix}gone.7"]["state"] == "complete_abort"
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT)


def test_another_program_s_transaction_takes_a_word_more(rig: Rig) -> None:
    """It is listed where it has a topic that is read; ids that are not listed are refused."""
    name = f"billing-{uuid4().hex[:8]}"
    rig.open(name, rig.site.partition(0))
    rig.open(f"else-{name}", rig.site.partition(0)._replace(topic=rig.site.broker.create_topic()))
    assert list(rig.listed()["transactions"]) == [name]
    assert rig.listed()["transactions"][name]["of_the_group"] is False
    assert "say --force" in rig.run("abort", name, "--yes", expect=2).output
    assert "has no transaction" in rig.run("abort", f"else-{name}", "--yes", expect=2).output
    done = json.loads(rig.run("abort", name, "--yes", "--force", "--json").stdout)
    assert (done["before"], done["after"]) == ("ongoing", "empty")
    assert "has no transaction" in rig.run("abort", name, "--yes", expect=2).output


@pytest.mark.parametrize("sink", [None, "kafka"])
def test_offsets_that_stay_in_doubt_are_cleared(rig: Rig, sink: str | None) -> None:
    """Though no transaction is open: with --force, in the group that the producers store in."""
    partition, group = rig.site.partition(0), rig.site.group
    name = f"{rig.prefix}one.3"
    if sink is not None:
        channel = rig.document["channels"]["main"]
        channel["processor"] = {"type": "arrow", "reducer": "json:dumps"}
        channel["sink"] = {"type": "kafka", "topic": rig.site.broker.create_topic()}
        del channel["offsets"]
        rig.write()
        group = sink_group(group)
    leave_in_doubt(rig.site.broker.address, name, group, partition, 9)
    with pytest.raises(KafkaException):
        _offset(rig.site, group, partition, 2.0)
    assert "say --force" in rig.run("abort", name, "--yes", expect=2).output
    rig.run("abort", name, "--yes", "--force")
    assert _offset(rig.site, group, partition, WAIT) < 0


@pytest.mark.parametrize(("chosen", "offset"), [([], 9), (["--as", "abort"], 5)])
def test_a_decided_transaction_is_settled(rig: Rig, chosen: list[str], offset: int) -> None:
    """The log decides, or the operator where it does not; an open transaction is refused."""
    partition, group, name = rig.site.partition(0), rig.site.group, f"{rig.prefix}one.3"
    producer = rig.open(name, partition)
    for force in ((), ("--force",), ("--force", "--as", "commit")):
        refused = rig.run("settle", name, "--yes", *force, expect=2).output
        assert "has an open transaction" in refused
    with Consumer({"group.id": group, "log_level": 0}) as consumer:
        metadata = consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([ClientPartition(*partition, 5)], metadata, WAIT)
    producer.commit_transaction(WAIT)
    leave_in_doubt(rig.site.broker.address, name, group, partition, 9)
    (held,) = rig.listed()["held_back"]
    assert (held["topic"], held["for_good"]) == ("__consumer_offsets", True)
    assert held["decided"][name] == "commit"
    assert "settle ID finishes it" in rig.run("list").stdout
    assert "nothing was changed" in rig.run("settle", name, expect=2, answer="n\n").output
    assert "nothing is held back" in rig.run("settle", name, "--yes", *chosen).stdout
    assert _offset(rig.site, group, partition, WAIT) == offset
    assert rig.listed()["held_back"] == []
    assert "has no transaction" in rig.run("settle", "nobody.1", "--yes", expect=2).output


def test_transactions_in_written_topics_are_listed(rig: Rig) -> None:
    """An output and the dead letters are looked at, though the channel reads neither."""
    output, letters = rig.site.broker.create_topic(), rig.site.broker.create_topic()
    channel = rig.document["channels"]["main"]
    channel["processor"] = {"type": "arrow", "reducer": "json:dumps"}
    channel["sink"] = {"type": "kafka", "topic": output}
    channel["rejects"] = {"failing": "dead_letter", "topic": letters}
    del channel["offsets"]
    rig.write()
    name = f"billing-{uuid4().hex[:8]}"
    producer = rig.open(name, rig.site.partition(0)._replace(topic=output))
    producer.produce(letters, b"open", partition=0)
    producer.flush(WAIT)
    listed = rig.listed()
    assert list(listed["transactions"]) == [name]
    assert [each["topic"] for each in listed["held_back"]] == sorted([output, letters])
    assert {tuple(each["transactional_ids"]) for each in listed["held_back"]} == {(name,)}
    rig.run("abort", name, "--yes", "--force")
    assert rig.listed()["held_back"] == []


def _offset(site: Site, group: str, partition: TopicPartition, wait: float) -> int:
    settings = {"bootstrap.servers": site.broker.address, "group.id": group, "log_level": 0}
    with Consumer(settings) as consumer:
        (found,) = consumer.committed([ClientPartition(*partition)], timeout=wait)
        if found.error is not None:
            raise KafkaException(found.error)
        return int(found.offset)


@pytest.mark.slow
def test_a_running_member_s_producer_is_left_alone(rig: Rig) -> None:
    """It is named, with exit code 3; with --force it is shut out, and the member joins again."""
    daemon = rig.site.daemon(rig.document).start(config=rig.file)
    rig.site.broker.produce(rig.site.partition(0), b"a")
    eventually(lambda: rig.site.offsets()[0] == 1)
    found = rig.listed("--all")["transactions"]
    (name,) = found
    assert found[name]["owner"].startswith("one at ")
    refused = rig.run("abort", name, "--yes", expect=3).output
    assert "running member one at" in refused

    rig.run("abort", name, "--yes", "--force")
    rig.site.broker.produce(rig.site.partition(0), b"b")
    eventually(lambda: rig.site.offsets()[0] == 2)
    assert len(rig.listed("--all")["transactions"]) == 2
    assert daemon.process is not None
    assert daemon.process.poll() is None
