"""``headrace dead-letters`` on a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.letter_headers import REPLAYED_HEADER, Failure, LetterHeaders
from headrace.core.positions import format_moment
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.kafka.dead_letters import LetterReplay, replay_group
from headrace.kafka.errors import ProduceError
from headrace.kafka.transaction_log import TransactionLog
from headrace.ops.dead_letters import commands
from headrace.testing.records import FakeRecord
from tests.brokers import Broker
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from pathlib import Path

    from confluent_kafka import Message
    from typer.testing import Result

WAIT = 60.0

#: A minute ago: what is as old as a week the broker deletes within minutes.
TIME = int(SYSTEM_CLOCK.time() * 1000) - 60_000


@dataclass
class Rig:
    """A channel's topics, with letters in one of them, and the commands on its configuration."""

    broker: Broker
    directory: Path

    def __post_init__(self) -> None:
        self.source = self.broker.create_topic(2)
        self.dead = self.broker.create_topic(2)
        self.group = f"group.{self.source}"
        self.file = self.directory / "headrace.yaml"
        channel = {
            "topics": [self.source],
            "group": self.group,
            "processor": {"type": "simple", "deliver": "record"},
            "sink": "builtins:print",
            "rejects": {"failing": "dead_letter", "topic": self.dead},
        }
        document = {
            "kafka": {"bootstrap_servers": self.broker.address},
            "zookeeper": {"hosts": "127.0.0.1:1"},
            "state_dir": str(self.directory),
            "channels": {"main": channel},
        }
        self.file.write_text(json.dumps(document), encoding="utf-8")

    def letter(self, number: int, partition: int = 0, **more: str) -> FakeRecord:
        """Return a letter of the record at offset ``number`` of a partition of the source."""
        said: dict[str, str | None] = {
            "group": self.group,
            "topic": self.source,
            "topic_id": None,
            "partition": str(partition),
            "offset": str(number),
            "timestamp": str(TIME + number),
            "error": "ValueError",
            "message": f"no {number}",
            "attempt": "3",
            **more,
        }
        ours = [(f"headrace.{name}", text.encode()) for name, text in said.items() if text]
        return FakeRecord(
            key_=b"k%d" % number, value_=b"v%d" % number, headers_=[("a", b"1"), *ours]
        )

    def connect_letter(self, number: int, partition: int = 0) -> FakeRecord:
        """Return the same letter as a channel writes it with Kafka Connect's names alone."""
        said = {"topic": self.source, "partition": str(partition), "offset": str(number)}
        failure = Failure("", ValueError(f"no {number}"))
        names = LetterHeaders("connect", self.group).of(said, failure)
        return replace(self.letter(number, partition), headers_=[("a", b"1"), *names])

    def store(self, partition: int, *letters: FakeRecord) -> None:
        """Put letters into the dead-letter topic."""
        self.broker.produce(TopicPartition(self.dead, partition), *letters)

    def arguments(self, *arguments: str) -> list[str]:
        """Return a command with its configuration."""
        return ["dead-letters", *arguments, "-c", str(self.file)]

    def run(self, *arguments: str, expect: int = 0, answer: str | None = None) -> Result:
        """Run a command; its exit code is the one that is expected."""
        result = CliRunner().invoke(app, self.arguments(*arguments), input=answer)
        assert result.exit_code == expect, result.output
        return result

    def listed(self, *more: str) -> list[dict[str, Any]]:
        """Return what list shows."""
        return [json.loads(line) for line in self.run("list", "--json", *more).stdout.splitlines()]

    def names(self, *more: str) -> list[str]:
        """Return the records that list shows letters of."""
        return [f"{each['partition']}:{each['offset']}" for each in self.listed(*more)]

    def records(self, topic: str | None = None) -> list[Message]:
        """Return what readers of committed records find in a topic.

        The brokers answer a commit before its partitions are told, and readers wait for that.
        """
        chosen, properties = topic or self.source, {"bootstrap.servers": self.broker.address}
        log, partitions = TransactionLog(properties), [TopicPartition(chosen, n) for n in (0, 1)]
        assert wait_for(lambda: not log.held_back(partitions), Deadline.after(WAIT))
        return committed_records(self.broker.address, chosen)

    def replayed(self, topic: str | None = None) -> Counter[bytes | None]:
        """Return the values of these."""
        return Counter(each.value() for each in self.records(topic))


@pytest.fixture
def rig(bootstrap_servers: str, tmp_path: Path) -> Rig:
    """Topics of a test's own."""
    return Rig(Broker(bootstrap_servers), tmp_path)


def test_letters_are_listed_with_where_they_are_from(rig: Rig) -> None:
    """All that headers say is there, in JSON and in a table, and each filter leaves others out."""
    rig.store(0, rig.letter(1), rig.letter(2, error="KeyError"))
    rig.store(1, rig.letter(30, 1), rig.letter(4, group="another"))

    first = rig.listed("--values")[0]
    assert first["letter"] == "0:0"
    assert (first["topic"], first["partition"], first["offset"]) == (rig.source, 0, 1)
    assert (first["key"], first["value"], first["value_bytes"]) == ("k1", "v1", 2)
    assert (first["error"], first["message"], first["attempts"]) == ("ValueError", "no 1", 3)
    assert first["record_time"] == format_moment(TIME + 1)
    assert (first["state"], first["headers"]) == ("pending", [["a", "1"]])
    assert rig.names() == ["0:1", "0:2", "1:30"]
    assert rig.names("--topic", f"{rig.source}:1") == ["1:30"]
    assert rig.names("--topic", "another") == []
    assert rig.names("--offset", "2-30") == ["0:2", "1:30"]
    assert rig.names("--reason", "keyerror") == ["0:2"]
    assert rig.names("--letter", "1:0", "--letter", "0:0") == ["0:1", "1:30"]
    assert rig.names("--until", first["time"]) == []
    assert rig.names("--since", first["time"], "--limit", "2") == ["0:1", "0:2"]
    assert len(rig.listed("--dead-letter-topic", rig.dead)) == 4
    table = rig.run("list")
    assert f"{rig.source}-1:30" in table.stdout
    assert "1 letters of other groups" in table.stderr


def test_letters_are_counted_by_error(rig: Rig) -> None:
    """Counts by class and code come most first, with the last of each, filtered and unlimited."""
    rig.store(0, *(rig.letter(n, message=f"no row: [TYPE] field {n}") for n in (1, 2, 3)))
    rig.store(1, rig.letter(4, 1, message="no row: [EMPTY]"), rig.letter(5, 1, error="KeyError"))

    found = rig.listed("--by", "error", "--limit", "1")

    assert [(each["error"], each["letters"], each["pending"]) for each in found] == [
        ("ValueError [TYPE]", 3, 3),
        ("KeyError", 1, 1),
        ("ValueError [EMPTY]", 1, 1),
    ]
    assert (found[0]["last"]["letter"], found[0]["last"]["message"]) == (
        "0:2",
        "no row: [TYPE] field 3",
    )
    assert len(rig.listed("--by", "error", "--reason", "[type]")) == 1
    lines = rig.run("list", "--by", "error").stdout.splitlines()
    assert lines[1].split()[:4] == ["ValueError", "[TYPE]", "3", "3"]
    rig.run("list", "--by", "error", "--values", expect=2)


def test_redacted_fields_are_not_listed(rig: Rig) -> None:
    """Key, headers and members of values are redacted as in a tap; a replayed record is whole."""
    document = json.loads(rig.file.read_text())
    document["admin"] = {"redact": ["key", "value.card", "headers.a"]}
    rig.file.write_text(json.dumps(document))
    letter = rig.letter(1)
    rig.store(0, replace(letter, value_=b'{"card": "4711", "n": 1}'), letter)
    first, second = rig.listed("--values")
    assert (first["key"], first["headers"]) == ("***", [["a", "***"]])
    assert json.loads(first["value"]) == {"card": "***", "n": 1}
    assert second["value"] == "***"
    table = rig.run("list", "--values").stdout
    assert "4711" not in table
    assert "k1" not in table
    rig.run("replay", "--yes", "--letter", "0:0")
    assert rig.replayed() == Counter([b'{"card": "4711", "n": 1}'])


def test_a_record_comes_back_as_it_was(rig: Rig) -> None:
    """Key, value, headers, partition and time are the record's, and one header says the rest."""
    rig.store(0, rig.letter(7, 1))
    rig.run("replay", "--yes")

    (found,) = rig.records()
    assert (found.partition(), found.key(), found.value()) == (1, b"k7", b"v7")
    assert found.timestamp()[1] == TIME + 7
    replayed = f"{rig.dead}:0:0".encode()
    assert found.headers() == [("a", b"1"), (REPLAYED_HEADER, replayed)]
    assert rig.listed()[0]["state"] == "replayed"


def test_letters_with_kafka_connect_s_names_alone_are_read(rig: Rig) -> None:
    """Both commands take from them where records are from; each comes back there, once."""
    rig.store(0, rig.connect_letter(1), rig.connect_letter(7, 1))
    first, second = rig.listed()
    assert (first["topic"], first["partition"], first["offset"]) == (rig.source, 0, 1)
    assert (first["error"], first["message"], first["group"]) == ("ValueError", "no 1", rig.group)
    assert (second["partition"], second["offset"], second["message"]) == (1, 7, "no 7")
    table = rig.run("list").stdout
    for shown in (f"{rig.source}-0:1", "no 1", f"{rig.source}-1:7", "no 7"):
        assert shown in table

    for _ in range(2):
        rig.run("replay", "--yes")
    found = {each.partition(): (each.key(), each.value()) for each in rig.records()}
    assert found == {0: (b"k1", b"v1"), 1: (b"k7", b"v7")}
    assert sum(rig.replayed().values()) == 2
    for each in rig.records():
        replayed = f"{rig.dead}:0:{each.partition()}".encode()
        assert each.headers() == [("a", b"1"), (REPLAYED_HEADER, replayed)]
    assert [each["state"] for each in rig.listed()] == ["replayed", "replayed"]


def test_no_letter_is_replayed_twice(rig: Rig) -> None:
    """Whichever ones were chosen before; letters of one record are one; --again is another way."""
    rig.store(0, rig.letter(1), rig.letter(2), rig.letter(3), rig.letter(1))
    rig.store(1, rig.letter(5, 1), rig.letter(6, 1))
    rig.run("replay", "--yes", "--letter", "0:1", "--letter", "1:1")
    assert rig.replayed() == Counter([b"v2", b"v6"])
    assert rig.names("--pending") == ["0:1", "0:3", "1:5"]
    for _ in range(2):
        rig.run("replay", "--yes")
        assert rig.replayed() == Counter([b"v1", b"v2", b"v3", b"v5", b"v6"])
    assert [each["state"] for each in rig.listed()].count("duplicate") == 1
    rig.store(0, rig.letter(9))
    rig.run("replay", "--yes")
    rig.run("replay", "--yes", "--again", "--letter", "0:1")
    assert rig.replayed() == Counter([b"v1", b"v2", b"v2", b"v3", b"v5", b"v6", b"v9"])


def test_records_come_back_in_their_order(rig: Rig) -> None:
    """The order is by offset, whichever partitions the letters are in, with a topic's id or not."""
    rig.store(0, rig.letter(30), rig.letter(2, topic_id="id"))
    rig.store(1, rig.letter(1))
    rig.run("replay", "--yes")
    found = rig.records()
    assert [each.value() for each in found] == [b"v1", b"v30", b"v2"]


@pytest.mark.slow
def test_letters_outside_a_replay_do_not_hold_progress_back(rig: Rig) -> None:
    """Another group's letters, which it finds itself, foreign records and duplicates are passed."""
    foreign = FakeRecord(value_=b"x")
    own, other = rig.letter(1), rig.letter(2, group="another")
    rig.store(0, foreign, other, own, rig.letter(1), foreign, rig.letter(3))
    rig.store(1, rig.letter(1))
    rig.run("replay", "--yes")
    group, parts = replay_group(rig.dead), [TopicPartition(rig.dead, number) for number in (0, 1)]
    stored = rig.broker.committed(group, *parts)
    assert [each and each.offset for each in stored] == [6, 1]
    assert rig.replayed() == Counter([b"v1", b"v3"])
    assert not rig.listed("--pending")
    # the first letter of the record is gone, and the others of it are as done as that was
    rig.broker.delete_before(parts[0], 3)
    assert not rig.listed("--pending")
    rig.store(0, other)
    rig.run("replay", "--yes", "--dead-letter-topic", rig.dead)
    assert rig.replayed() == Counter([b"v1", b"v2", b"v3"])


def test_channels_that_share_a_topic_are_told_apart(rig: Rig) -> None:
    """One has to be named, and its letters are meant; a channel and its own re-key are one."""
    document = json.loads(rig.file.read_text())
    channels = document["channels"]
    channels["second"] = {**channels["main"], "topics": ["other"], "group": "another"}
    rig.file.write_text(json.dumps(document))
    rig.store(0, rig.letter(1), rig.letter(2, group="another"))
    assert "--channel main|second" in rig.run("list", expect=2).output
    assert "--channel main|second" in rig.run("replay", "--yes", expect=2).output
    assert rig.names("--channel", "second") == ["0:2"]

    processor = {
        "type": "keyed",
        "reducer": "a:b",
        "key": "value.id",
    }
    keyed = {
        "topics": [rig.source],
        "group": rig.group,
        "processor": processor,
        "rejects": {"failing": "dead_letter", "topic": rig.dead},
    }
    document["channels"] = {"main": keyed}
    rig.file.write_text(json.dumps(document))
    rig.store(1, rig.letter(5, 1, group=f"{rig.group}.rekey"))
    assert rig.names() == ["0:1", "1:5"]
    assert rig.names("--channel", "main") == ["0:1", "1:5"]


def test_nothing_is_replayed_unasked(rig: Rig) -> None:
    """With --dry-run, without a yes, and in JSON without one, the topic stays as it is."""
    rig.store(0, rig.letter(1), rig.letter(2))
    shown = json.loads(rig.run("replay", "--dry-run", "--json", "--limit", "1").stdout)
    assert (shown["letters"], shown["replayed"]) == (1, False)
    assert "nothing was replayed" in rig.run("replay", expect=2, answer="n\n").output
    rig.run("replay", "--json", expect=2)
    assert rig.replayed() == Counter()
    rig.run("replay", answer="y\n")
    assert sum(rig.replayed().values()) == 2


def test_letters_go_to_another_topic(rig: Rig) -> None:
    """Letters go by key; an unknown topic and the dead-letter topic itself are refused by name."""
    rig.store(0, rig.letter(1), rig.letter(2, topic="no.such.topic"))
    other = rig.broker.create_topic(2)
    assert "no.such.topic" in rig.run("replay", "--yes", expect=2).output
    assert "no.other" in rig.run("replay", "--yes", "--to", "no.other", expect=2).output
    assert "itself" in rig.run("replay", "--yes", "--to", rig.dead, expect=2).output
    assert rig.replayed() == Counter()
    done = json.loads(rig.run("replay", "--yes", "--json", "--to", other).stdout)
    assert (done["letters"], done["replayed"], done["to"]) == (2, True, other)
    assert rig.replayed(other) == Counter([b"v1", b"v2"])


def test_records_that_are_no_letters_are_not_replayed(rig: Rig) -> None:
    """A timer's letter and a foreign record are listed, and no replay takes them."""
    timer = [("headrace.partition", b"0"), ("headrace.timer", b"due"), ("headrace.message", b"m")]
    rig.store(0, FakeRecord(key_=b"k", value_=None, headers_=timer), FakeRecord(value_=b"x"))
    assert [each["state"] for each in rig.listed()] == ["no_record"] * 2
    assert "no letters to be replayed" in rig.run("replay", "--yes").stdout


def test_a_channel_without_a_topic_is_told_so(rig: Rig) -> None:
    """The message names the option; a topic that does not exist is named as well."""
    document = json.loads(rig.file.read_text())
    del document["channels"]["main"]["rejects"]
    rig.file.write_text(json.dumps(document))
    assert "--dead-letter-topic" in rig.run("list", expect=2).output
    shown = rig.run("list", "--dead-letter-topic", "no.such.topic", expect=2).output
    assert "no.such.topic does not exist" in shown


def test_offsets_of_another_program_are_not_taken_for_progress(rig: Rig) -> None:
    """The command says in which group they are, and replays nothing."""
    rig.store(0, rig.letter(1))
    rig.broker.commit(replay_group(rig.dead), TopicPartition(rig.dead, 0), 1)
    assert replay_group(rig.dead) in rig.run("replay", "--yes", expect=1).output
    assert rig.replayed() == Counter()


def test_a_transaction_that_fails_leaves_nothing_half_done(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says how many were replayed before, and the next command takes the others."""
    monkeypatch.setattr(commands, "_TRANSACTION", 2)
    rig.store(0, rig.letter(1), rig.letter(2), rig.letter(3), rig.letter(4))
    commit = LetterReplay.commit
    calls: list[int] = []

    def failing(self: Any, records: Any, progress: Any) -> None:
        calls.append(len(records))
        if len(calls) == 2:
            # a record that the brokers refuse, among those of the transaction
            records = [*records, records[0]._replace(partition=99)]
        commit(self, records, progress)

    monkeypatch.setattr(LetterReplay, "commit", failing)
    output = rig.run("replay", "--yes", expect=1).output
    assert "2 of 4 letters were replayed before that" in output
    assert rig.replayed() == Counter([b"v1", b"v2"])
    rig.run("replay", "--yes")
    assert rig.replayed() == Counter([b"v1", b"v2", b"v3", b"v4"])


def test_another_replay_shuts_the_former_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters that both are about to replay are replayed by the later one alone."""
    rig.store(0, rig.letter(1), rig.letter(2))
    commit = LetterReplay.commit

    def late(self: Any, records: Any, progress: Any) -> None:
        monkeypatch.setattr(LetterReplay, "commit", commit)
        rig.run("replay", "--yes")
        with pytest.raises(ProduceError, match="shut out"):
            commit(self, records, progress)
        raise ProduceError("shut out")

    monkeypatch.setattr(LetterReplay, "commit", late)
    rig.run("replay", "--yes", expect=1)
    assert rig.replayed() == Counter([b"v1", b"v2"])


@pytest.mark.timeout(240)
def test_a_replay_that_is_killed_goes_on_where_it_was(rig: Rig) -> None:
    """Each record is there once in the end, however often the replay is killed."""
    count = 3000
    for partition in (0, 1):
        rig.store(partition, *(rig.letter(n, partition) for n in range(partition, count, 2)))
    partitions = [TopicPartition(rig.source, number) for number in (0, 1)]
    ends = 0
    for _ in range(3):
        command = [sys.executable, "-m", "headrace", *rig.arguments("replay", "--yes")]
        with subprocess.Popen([*command, "--limit", str(count)], stdout=subprocess.DEVNULL) as one:

            def has_produced(one: subprocess.Popen[bytes] = one, before: int = ends) -> bool:
                found = sum(map(rig.broker.end, partitions))
                return one.poll() is not None or found > before

            assert wait_for(has_produced, Deadline.after(WAIT))
            one.kill()
        ends = sum(map(rig.broker.end, partitions))
    while rig.listed("--pending", "--limit", "1"):
        rig.run("replay", "--yes")
    assert rig.replayed() == Counter(b"v%d" % n for n in range(count))
