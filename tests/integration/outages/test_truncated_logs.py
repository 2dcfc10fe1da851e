"""A log that really loses its end: its segment is cut on the disk, below a broker that is down."""

from __future__ import annotations

import struct
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from headrace.core.clock import Deadline
from headrace.core.errors import LogTruncatedError
from headrace.kafka import KafkaRangeSource
from headrace.kafka.columnar.library import load
from headrace.kafka.errors import LibraryMissingError
from tests.brokers import Broker
from tests.integration.channel.rig import WAIT, Group, Notes, channel_of, eventually
from tests.integration.seen import metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.controller.controller import KafkaController
    from headrace.devstack import KafkaBroker
    from headrace.kafka.ports import Fetched
    from tests.integration.seen import Log

pytestmark = pytest.mark.slow


_REDUCER = """
def places(table, batch):
    return table.select(["partition", "offset"])
"""


class Columns(Notes):
    """The same with records in columns."""

    in_columns = True


def lose_end(server: KafkaBroker, group: Group, offset: int) -> None:
    """Cut the log at an offset where a batch of the producer's begins, as after a crash.

    The group's producer, which knows more records than the broker, is replaced.
    """
    server.stop(Deadline.after(WAIT))
    data = server.directory / "data"
    folder = data / str(group.partition())
    segment = folder / f"{0:020}.log"
    content, at = segment.read_bytes(), 0
    while at < len(content):
        base, length = struct.unpack_from(">qi", content, at)
        if base >= offset:
            break
        at += 12 + length
    assert (base, at < len(content)) == (offset, True)
    segment.write_bytes(content[:at])
    for index in (*folder.glob("*.index"), *folder.glob("*.timeindex")):
        index.unlink()
    (data / ".kafka_cleanshutdown").unlink()
    server.start()
    group.broker = Broker(server.address)


def filled(server: KafkaBroker, make_group: Callable[..., Group], hosts: str) -> Group:
    """Return a group whose topic has ten records, in batches of six and four."""
    group = make_group(hosts, session_timeout=6, at=Broker(server.address))
    group.produce(6)
    group.produce(4, start=6)
    return group


def halted(controller: KafkaController) -> bool:
    """Whether the one partition rests."""
    return [each.state for each in channel_of(controller).partitions()] == ["paused"]


@pytest.mark.parametrize(("kind", "store"), [(Notes, "kafka"), (Columns, "zookeeper")])
def test_a_log_that_lost_its_end_and_grew_again_is_not_read_on(
    server: KafkaBroker,
    make_group: Callable[..., Group],
    zookeeper_hosts: str,
    log: Log,
    *,
    kind: type[Notes],
    store: str,
) -> None:
    """The next start says where the log parted; after a seek to there all that is new is read."""
    if kind is Columns:
        _require_columns()
    group = filled(server, make_group, zookeeper_hosts)
    settings = {"offsets": store}
    before = kind()
    with group.running(before, **settings) as controller:
        before.wait_values(10)
        eventually(lambda: channel_of(controller).partitions()[0].committed == 10)
    lose_end(server, group, 6)
    group.produce(8, start=100)
    notes = kind()
    with group.running(notes, **settings) as controller:
        eventually(lambda: halted(controller))
        log.expect(
            "log_truncated", topic=group.topic, partition=0, position=10, former_end=6, end=14
        )
        assert metric(controller, "log_truncations_total", topic=group.topic) == 1
        assert notes.values.total() == 0
        channel = channel_of(controller)
        channel.seek(group.partition(), 6, by="ann", deadline=Deadline.after(WAIT))
        notes.wait_values(8)
    assert {type(error) for error in notes.errors} == {LogTruncatedError}
    assert notes.records[group.partition()] == list(range(6, 14))


@pytest.mark.parametrize("kind", [Notes, Columns])
def test_a_log_that_loses_its_end_below_a_reader_halts_it(
    server: KafkaBroker,
    make_group: Callable[..., Group],
    zookeeper_hosts: str,
    log: Log,
    kind: type[Notes],
) -> None:
    """Once, whatever the policy; a member that starts afterwards halts there as well."""
    if kind is Columns:
        _require_columns()
    group = filled(server, make_group, zookeeper_hosts)
    notes = kind()
    with group.running(notes, offset_out_of_range="earliest") as controller:
        notes.wait_values(10)
        eventually(lambda: channel_of(controller).partitions()[0].committed == 10)
        lose_end(server, group, 6)
        eventually(lambda: halted(controller))
        group.produce(8, start=100)
        log.expect("log_truncated", topic=group.topic, position=10)
    assert notes.values.total() == 10
    again = kind()
    with group.running(again) as controller:
        eventually(lambda: halted(controller))
        log.expect("log_truncated", topic=group.topic, position=10, former_end=6, end=14)
    assert again.values.total() == 0
    _reset(group, 6)
    after = kind()
    with group.running(after):
        after.wait_values(8)
    assert (after.records[group.partition()], after.errors) == (list(range(6, 14)), [])


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_log_that_lost_its_end_costs_a_delta_table_no_record(
    server: KafkaBroker,
    make_group: Callable[..., Group],
    zookeeper_hosts: str,
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
    *,
    forgotten: bool,
) -> None:
    """The table's epoch says it where the group has forgotten its offset; a reset reads on."""
    group = filled(server, make_group, zookeeper_hosts)
    (group.directory / "places_of.py").write_text(_REDUCER, encoding="utf-8")
    monkeypatch.syspath_prepend(group.directory)
    table = group.directory / "table"
    document = group.document(
        "a",
        processor={"type": "arrow", "reducer": "places_of:places"},
        sink={"type": "delta", "path": str(table)},
        offsets="zookeeper",
    )
    with _started(group, document):
        eventually(lambda: len(_offsets(table)) == 10)
    lose_end(server, group, 6)
    group.produce(8, start=100)
    if forgotten:
        with group.zookeeper() as session:
            session.delete(group.paths.offset(group.partition()))
    with _started(group, document) as controller:
        eventually(lambda: halted(controller))
        log.expect("log_truncated", topic=group.topic, position=10, former_end=6, end=14)
    assert _offsets(table) == list(range(10))
    _operate(group, document, "reset", "--to", "offset:6", "--replay", "append")
    with _started(group, document):
        eventually(lambda: len(_offsets(table)) == 18)
    assert _offsets(table) == sorted([*range(10), *range(6, 14)])


def test_planning_stops_at_a_log_that_lost_its_end(
    server: KafkaBroker, make_group: Callable[..., Group], zookeeper_hosts: str
) -> None:
    """Below a reader, at a start with the epoch of before, and not where the position is whole."""
    group = filled(server, make_group, zookeeper_hosts)
    partition = group.partition()
    source = KafkaRangeSource({"bootstrap.servers": server.address}, "g")
    try:
        source.assign({partition: 0})
        led = _until(source, lambda fetched: bool(fetched.chunks)).leader_epochs[partition]
        lose_end(server, group, 6)
        group.produce(8, start=100)
        assert _until(source, lambda fetched: bool(fetched.truncated)).truncated == [(partition, 6)]
        source.seek({partition: 10}, {partition: led})
        assert _until(source, lambda fetched: bool(fetched.truncated)).truncated == [(partition, 6)]
        source.seek({partition: 5}, {partition: led})
        fetched = _until(source, lambda fetched: bool(fetched.chunks or fetched.truncated))
        ((_, run),) = fetched.chunks
        assert (run[0].offset(), fetched.leader_epochs[partition] > led) == (5, True)
    finally:
        source.close()


def _reset(group: Group, offset: int) -> None:
    """Move the stopped group as an operator does who takes what stands there now."""
    settings = {"processor": {"type": "simple"}, "sink": "json:dumps"}
    _operate(group, group.document("operator", **settings), "reset", "--to", f"offset:{offset}")


def _operate(group: Group, document: dict[str, Any], command: str, *arguments: str) -> None:
    path = group.file("operator", document)
    subprocess.run(
        [sys.executable, "-m", "headrace", "offsets", command, "-c", str(path), *arguments],
        check=True,
        capture_output=True,
        timeout=WAIT,
        cwd=group.directory,
    )


@contextmanager
def _started(group: Group, document: dict[str, Any]) -> Iterator[KafkaController]:
    controller = group.start(document, {})
    try:
        yield controller
    finally:
        assert controller.stop(Deadline.after(WAIT)).left == ()


def _offsets(table: Path) -> list[int]:
    """Return the offsets of the rows that a table has."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    return sorted(DeltaTable(table).to_pyarrow_table().column("offset").to_pylist())


def _until(source: KafkaRangeSource, found: Callable[[Fetched], bool]) -> Fetched:
    deadline = Deadline.after(WAIT)
    while not found(fetched := source.fetch(0.05)):
        assert not deadline.expired
    return fetched


def _require_columns() -> None:
    try:
        load()
    except LibraryMissingError as missing:
        pytest.skip(str(missing))
