"""The offsets of real groups, from the command line."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import structlog
import yaml
from confluent_kafka import Consumer
from deltalake import CommitProperties, DeltaTable, Transaction
from typer.testing import CliRunner

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.positions import format_moment
from headrace.core.records import identity_of
from headrace.extensions.delta.sink import DeltaSink
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.ports import Commit
from headrace.ops.offsets import commands
from headrace.ops.offsets.cli import app
from headrace.testing.records import FakeRecord
from tests.integration.daemon.rig import WAIT, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.daemon.rig import Site

#: Seconds for a run that starts a Spark of its own and ends, on a busy machine.
RUN = 180.0

_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[")


class Operator:
    """Calls ``headrace offsets`` for a site, in this process."""

    def __init__(self, site: Site, document: dict[str, Any] | None = None) -> None:
        self.site = site
        self.file = site.directory / "operator.yaml"
        self.file.write_text(json.dumps(document or site.document()), encoding="utf-8")
        self.errors = ""

    def call(self, command: str, *options: str, code: int = 0) -> str:
        """Call a command and return what it printed; it has to end with ``code``."""
        result = CliRunner().invoke(app, [command, "-c", str(self.file), *options])
        self.errors = result.stderr
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        # a client of an earlier test may live on for a moment and log here, where nothing is set up
        lines = result.stdout.splitlines(keepends=True)
        return "".join(line for line in lines if not _LOGGED.match(line))

    def shown(self) -> list[dict[str, Any]]:
        """Return what ``show --json`` says of the partitions."""
        (channel,) = json.loads(self.call("show", "--json"))
        assert channel["group"] == self.site.group
        partitions: list[dict[str, Any]] = channel["partitions"]
        return partitions


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the commands log warnings, as they do, without taking over the tests' logging."""
    before = structlog.get_config()
    warnings = structlog.make_filtering_bound_logger(logging.WARNING)
    monkeypatch.setattr(
        commands, "configure_logging", lambda _: structlog.configure(wrapper_class=warnings)
    )
    yield
    structlog.configure(**before)


@pytest.fixture
def operator(site: Site) -> Operator:
    """An operator of a group that has read ten records of either partition."""
    for number in (0, 1):
        site.broker.produce(site.partition(number), *[b"%d-%d" % (number, n) for n in range(10)])
    committed = {site.partition(number): Commit(10, 1, "one") for number in (0, 1)}
    eventually(lambda: not site.store.commit(committed, Deadline.after(WAIT)))
    return Operator(site)


def read_up(site: Site, document: dict[str, Any]) -> None:
    """Run a daemon that reads up to the latest records."""
    daemon = site.daemon(document).start("--until", "latest")
    assert daemon.running.wait(RUN) == 0, daemon.text()


def test_the_console_script_has_the_commands(operator: Operator) -> None:
    """In a process of its own: the table alone is on standard output, and nothing besides."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "offsets", "show", "-c", str(operator.file)],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT,
    )
    assert (done.stdout, done.stderr) == (operator.call("show"), "")


def test_a_group_is_shown(operator: Operator) -> None:
    """Offsets, epochs, the log's ends and the lag, as a table and as JSON."""
    site = operator.site
    site.broker.produce(site.partition(1), b"more")
    assert operator.shown() == [
        {
            "topic": site.topic,
            "partition": number,
            "group_offset": 10,
            "epoch": 1,
            "sink_offset": None,
            "next_offset": 10,
            "log_start": 0,
            "log_end": 10 + number,
            "lag": number,
            "notes": [],
        }
        for number in (0, 1)
    ]
    first, heads, *rows = operator.call("show", "--topic", f"{site.topic}:1").splitlines()
    assert first == f"channel main, group {site.group}"
    assert heads.split() == [
        "topic", "partition", "group", "epoch", "sink", "first", "end", "lag", "note",
    ]  # fmt: skip
    assert [row.split() for row in rows] == [[site.topic, "1", "10", "1", "-", "0", "11", "1"]]
    assert operator.errors == ""


def test_topics_are_matched_by_pattern(operator: Operator) -> None:
    """Shown and moved are the topics that there are; a pattern without any is named."""
    site, document = operator.site, operator.site.document()
    document["channels"]["main"]["topics"] = [f"^{site.topic}$", "^no.such.topic"]
    matched = Operator(site, document)
    assert matched.shown() == operator.shown()
    assert matched.errors == "no topic on the brokers matches ^no.such.topic\n"
    reset = ["reset", "--to", "offset:4", "--topic"]
    matched.call(*reset, f"{site.topic}:1")
    assert site.offsets() == [10, 4]
    matched.call(*reset, "other", code=2)
    assert f"other is not of this channel, which reads ^{site.topic}$, ^no" in matched.errors
    matched.call(*reset, "no.such.topic.yet", code=2)
    assert "no.such.topic.yet does not exist on the brokers" in matched.errors


def test_a_reset_is_planned_and_then_done(operator: Operator) -> None:
    """The dry run changes nothing; afterwards a daemon reads the same records again."""
    site = operator.site
    planned = operator.call("reset", "--to", "shift-by:-3", "--dry-run")
    assert planned.splitlines()[-1] == "2 of 2 partitions would move"
    assert site.offsets() == [10, 10]
    table = operator.call("reset", "--to", "shift-by:-3", "--topic", f"{site.topic}:1")
    assert table.splitlines()[1].split() == [site.topic, "1", "10", "7", "-3"]
    assert table.splitlines()[-1] == "1 of 1 partitions moved"
    assert site.offsets() == [10, 7]
    assert site.nodes() == []
    before = len(site.seen())
    read_up(site, site.document())
    assert site.seen()[before:] == ["1-7", "1-8", "1-9"]
    assert [each["epoch"] for each in operator.shown()] == [2, 3]


def test_a_reset_to_a_time_to_an_offset_and_to_the_ends(operator: Operator) -> None:
    """Clamped where the log ends, and by the records' own times."""
    site = operator.site
    noon = int(SYSTEM_CLOCK.time()) * 1000 + 60_000
    late = [FakeRecord(value_=b"late", timestamp_=noon + n) for n in range(3)]
    site.broker.produce(site.partition(0), *late)
    site.broker.delete_before(site.partition(0), 4)
    for target, offsets in (
        ("earliest", [4, 0]),
        ("latest", [13, 10]),
        (f"datetime:{format_moment(noon)}", [10, 10]),
        ("offset:2", [4, 2]),
    ):
        done = json.loads(operator.call("reset", "--to", target, "--json"))
        assert [each["new_offset"] for each in done["partitions"]] == offsets
        assert site.offsets() == offsets
    assert done["partitions"][0]["notes"] == ["2 is before the log: its first offset"]


def test_a_running_channel_is_refused_by_name(operator: Operator) -> None:
    """Exit code 3, who it is and how to stop it; once it is stopped, the reset works."""
    site = operator.site
    daemon = site.run()
    daemon.wait_event("member_joined")
    operator.call("reset", "--to", "earliest", code=3)
    assert f"one (process {daemon.running.pid} on " in operator.errors
    assert "SIGTERM" in operator.errors
    dry_run = json.loads(operator.call("reset", "--to", "earliest", "--dry-run", "--json"))
    assert "process" in dry_run["refused"]
    assert site.offsets() == [10, 10]
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    operator.call("reset", "--to", "earliest")
    assert site.offsets() == [0, 0]


def test_a_consumer_of_another_kind_is_refused(operator: Operator) -> None:
    """A program that subscribes with the same group is named by its client id."""
    site = operator.site
    with Consumer(
        {
            "bootstrap.servers": site.broker.address,
            "group.id": site.group,
            "client.id": "stranger",
        }
    ) as consumer:
        consumer.subscribe([site.topic])
        eventually(lambda: consumer.poll(0.1) is None and consumer.assignment())
        operator.call("reset", "--to", "earliest", code=3)
    assert "stranger at " in operator.errors
    assert site.offsets() == [10, 10]


def test_offsets_are_exported_and_imported(operator: Operator) -> None:
    """Exported offsets are restored, also into another group."""
    site = operator.site
    file = site.directory / "offsets.yaml"
    operator.call("reset", "--to", "offset:6", "--topic", f"{site.topic}:0")
    assert operator.call("export", str(file)).startswith("2 of 2 partitions")
    written = yaml.safe_load(file.read_text())
    printed = yaml.safe_load(operator.call("export", "-"))
    assert {**printed, "exported": None} == {**written, "exported": None}
    assert written["topics"][site.topic]["offsets"] == {0: 6, 1: 10}
    operator.call("reset", "--to", "earliest")
    operator.call("import", str(file))
    assert site.offsets() == [6, 10]

    document = site.document(group=f"{site.group}.copy")
    copy = Operator(site, document)
    copy.call("import", str(file))
    copied = site.broker.committed(f"{site.group}.copy", site.partition(0), site.partition(1))
    assert [None if each is None else each.offset for each in copied] == [6, 10]


def test_a_file_that_does_not_fit_changes_nothing(operator: Operator) -> None:
    """Exit code 2 with everything that is wrong; the offsets that would fit stay, too."""
    site = operator.site
    file = site.directory / "offsets.yaml"
    document = {
        "headrace_offsets": 1,
        "topics": {site.topic: {"offsets": {0: 3, 1: 999}}},
    }
    file.write_text(yaml.safe_dump(document))
    operator.call("import", str(file), code=2)
    assert operator.errors.startswith(f"{site.topic}-1: offset 999 is outside of what the brokers")
    assert site.offsets() == [10, 10]
    assert site.nodes() == []


@pytest.mark.parametrize("offsets", ["zookeeper", {"fencing": "transactions"}])
def test_a_reset_works_wherever_the_group_s_offsets_are(site: Site, offsets: Any) -> None:
    """In ZooKeeper's nodes, and where members commit through transactions."""
    document = site.document(offsets=offsets)
    for number in (0, 1):
        site.broker.produce(site.partition(number), b"first", b"second")
    read_up(site, document)
    operator = Operator(site, document)
    assert [each["group_offset"] for each in operator.shown()] == [2, 2]
    operator.call("reset", "--to", "shift-by:-1")
    assert [each["next_offset"] for each in operator.shown()] == [1, 1]
    read_up(site, document)
    assert sorted(site.seen()[4:]) == ["second", "second"]


def test_offsets_in_a_delta_table_move_as_well(operator: Operator) -> None:
    """They are shown beside the group's, and a reset leaves its trace in the table's history."""
    site = operator.site
    table, identities = site.directory / "table", identities_of(site)
    DeltaTable.create(table, pa.schema([("id", pa.int64())]))
    DeltaTable(table).create_write_transaction(
        [],
        "append",
        DeltaTable(table).schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction(identities[0], 8)]),
    )
    processor = {"type": "spark", "reducer": "functions:keep"}
    sink = {"type": "delta", "path": str(table)}
    with_table = Operator(site, site.document(processor=processor, sink=sink))
    assert [each["sink_offset"] for each in with_table.shown()] == [8, None]
    assert with_table.shown()[0]["notes"] == ["the sink's offset counts, not the group's"]

    with_table.call("reset", "--to", "shift-by:-1", code=2)
    assert "--replay append keeps it" in with_table.errors
    plan = json.loads(
        with_table.call("reset", "--to", "shift-by:-1", "--replay", "append", "--json")
    )

    assert [each["old_offset"] for each in plan["partitions"]] == [8, 10]
    assert site.offsets() == [7, 9]
    assert [DeltaSink(table).stored_offset(identity) for identity in identities] == [7, None]
    history = DeltaTable(table).history(1)[0]
    assert json.loads(history["headrace_offsets"]) == {
        "operation": "reset",
        "moved": {f"{site.topic}-0": [8, 7]},
        "replay": "append",
    }
    assert history["headrace_member"].startswith("offsets.")


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_a_spark_channel_follows_the_table_s_offset_after_a_reset(site: Site) -> None:
    """Two bounded runs with a reset between them: records behind the new offset come again."""
    (site.directory / "reducers.py").write_text(
        "def keep(df, batch):\n    return df.selectExpr('partition', 'offset')\n"
    )
    table = site.directory / "table"
    document = site.document(
        processor={"type": "spark", "reducer": "reducers:keep"},
        sink={"type": "delta", "path": str(table)},
    )
    document["spark"] = {"master": "local[1]"}
    for number in (0, 1):
        site.broker.transact(site.partition(number), *[b"x"] * 5)
    read_up(site, document)
    operator = Operator(site, document)
    before = operator.shown()
    assert [each["group_offset"] for each in before] == [6, 6]
    # past the marker where that was fetched with the records
    assert {each["sink_offset"] for each in before} <= {5, 6}

    back = ["reset", "--to", "offset:3", "--topic", f"{site.topic}:1"]
    operator.call(*back, "--replay", "append")

    assert [p["next_offset"] for p in operator.shown()] == [before[0]["sink_offset"], 3]
    read_up(site, document)
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    found = sorted((row["partition"], row["offset"]) for row in rows)
    assert found == [(0, n) for n in range(5)] + [(1, n) for n in (0, 1, 2, 3, 3, 4, 4)]
    assert site.offsets() == [6, 6]


def identities_of(site: Site) -> list[str]:
    """Return what a sink keeps the partitions' offsets under."""
    catalog = KafkaTopicCatalog({"bootstrap.servers": site.broker.address}, site.group)
    deadline = Deadline.after(WAIT)
    cluster = catalog.cluster_id(deadline)
    topic_id = catalog.describe([site.topic], deadline)[site.topic].topic_id
    catalog.close()
    return [identity_of(cluster, site.group, topic_id, number) for number in (0, 1)]


def test_a_processor_with_offsets_of_its_own_is_refused(operator: Operator) -> None:
    """They would win at the next start; the message says where to change them."""
    site = operator.site
    (site.directory / "keeping.py").write_text(
        "from headrace import BatchProcessor, BatchResponse\n"
        "class Keeping(BatchProcessor):\n"
        "    def on_next_batch(self, batch):\n"
        "        return BatchResponse.advance()\n"
        "    def stored_offset(self, assignment):\n"
        "        return 3\n"
    )
    document = site.document(processor={"type": "custom", "factory": "keeping:Keeping"})
    del document["channels"]["main"]["sink"]
    keeping = Operator(site, document)
    keeping.call("reset", "--to", "earliest", code=1)
    assert "keeping:Keeping keeps offsets of its own" in keeping.errors
    assert site.offsets() == [10, 10]
    (shown,) = json.loads(keeping.call("show", "--json"))
    assert shown["sink_offsets_known"] is False


def test_an_unknown_name_time_or_server_has_its_own_exit_code(operator: Operator) -> None:
    """An unknown topic, partition, channel, time or server is an error with its own exit code."""
    site = operator.site
    operator.call("reset", "--to", "earliest", "--topic", f"{site.topic}:7", code=2)
    assert "has no partition 7; it has 2, from 0 on" in operator.errors
    operator.call("reset", "--to", "earliest", "--channel", "other", code=2)
    assert "there is no channel other; choose from main" in operator.errors
    operator.call("reset", "--to", "noon", code=2)
    assert "shift-by:N" in operator.errors
    document = site.document()
    document["channels"]["main"]["topics"] = [site.topic, "gone.topic"]
    missing = Operator(site, document)
    missing.call("reset", "--to", "earliest", code=2)
    assert "topic gone.topic does not exist on the brokers" in missing.errors
    assert len(missing.shown()) == 2
    missing.call("reset", "--to", "earliest", "--topic", site.topic)
    assert site.offsets() == [0, 0]
    document["zookeeper"] = {"hosts": "127.0.0.1:1", "connect_timeout": "1s"}
    Operator(site, document).call("reset", "--to", "latest", "--topic", site.topic, code=1)
    assert site.offsets() == [0, 0]
