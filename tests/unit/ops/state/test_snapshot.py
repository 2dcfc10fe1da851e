"""Snapshots of local stores: taken, and put in the place of another machine's store."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import Config
from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.store import Position, RocksStore, StoredCommit
from headrace.ops.offsets.errors import ChannelRunningError
from headrace.ops.state.change import StateOf
from headrace.ops.state.snapshot import restore_from_snapshot, take_snapshot
from headrace.ops.state.snapshot_files import FILES, HEAD, SnapshotHead, read_head
from headrace.testing import InMemoryBroker
from headrace.testing.broker import InMemoryCatalog
from headrace.zookeeper.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Self

    from headrace.kafka.ports import TopicInfo

#: A changelog with two partitions, and how far the store of the first machine follows them.
LOG, ENDS = "g.in.state", {0: 8, 1: 5}

ROW = KeyRow(b'{"n":2}')


class Catalog(InMemoryCatalog):
    """A catalog of a cluster with a name."""

    cluster = "first"

    def cluster_id(self, deadline: Deadline) -> str:
        """Return the name."""
        del deadline
        return self.cluster

    def settings(self, topic: str, deadline: Deadline) -> Mapping[str, str]:
        """Return for how long deletions are kept."""
        del topic, deadline
        return {"delete.retention.ms": "3600000"}


@dataclass
class Table:
    """The changelog on a broker in memory, as commands see it."""

    broker: InMemoryBroker

    def __post_init__(self) -> None:
        self.catalog = Catalog(self.broker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    @property
    def info(self) -> TopicInfo:
        """Return the topic."""
        return self.broker.topics()[LOG]

    def ends(self, number: int) -> tuple[int, int]:
        """Return the ends of a partition."""
        return self.catalog.watermarks(TopicPartition(LOG, number), Deadline.after(1))


@dataclass
class Machines:
    """Two machines with the same channel, of which the first one has a store."""

    folder: Path
    table: Table

    def __post_init__(self) -> None:
        self.snapshot = self.folder / "snapshot"

    def config(self, name: str) -> Config:
        """Return the configuration of a machine."""
        return Config.model_validate(
            {
                "instance_id": name,
                "state_dir": str(self.folder / name),
                "kafka": {"bootstrap_servers": "localhost:1"},
                "zookeeper": {"hosts": "localhost:1"},
                "channels": {
                    "main": {
                        "topics": ["in"],
                        "group": "g",
                        "processor": {
                            "type": "keyed",
                            "engine": "arrow",
                            "reducer": "headrace.keyed:count",
                        },
                    }
                },
            }
        )

    def store_folder(self, name: str) -> Path:
        """Return where the store of a machine is."""
        return StateOf.of(self.config(name), None).store_folder

    def fill(self, name: str, ends: Mapping[int, int], at: float | None = None) -> None:
        """Give a machine a store that follows partitions so far, with a row of each."""
        with closing(RocksStore(self.store_folder(name))) as store:
            store.open()
            for number, end in ends.items():
                change = (PartitionKey(number, b"a"), RowChange(None, ROW))
                store.put([ChangedRows.of([change])], {number: StoredCommit(end, 1)})
            topic_id, noted = self.table.info.topic_id, time.time() if at is None else at
            store.note({n: Position(topic_id, end, noted, 0) for n, end in ends.items()})

    def take(self) -> None:
        """Take a snapshot of the first machine, where no process runs."""
        take_snapshot(self.config("one"), self.folder / "none.yaml", None, self.snapshot)

    def put(self, name: str = "two") -> None:
        """Put the snapshot in the place of a machine's store."""
        restore_from_snapshot(self.config(name), None, self.snapshot)

    def found(self, name: str) -> dict[int, tuple[int, KeyRow | None, StoredCommit | None]]:
        """Return what a machine has, by partition: offset, row and commit."""
        with closing(RocksStore(self.store_folder(name))) as store:
            store.open()
            return {
                number: (
                    position.offset,
                    store.get_many([PartitionKey(number, b"a")])[0],
                    store.commit_of(number),
                )
                for number, position in store.positions().items()
            }

    def change_head(self, **changes: Any) -> None:
        """Change what a snapshot says of itself."""
        file = self.snapshot / HEAD
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))


WHOLE = {number: (end, ROW, StoredCommit(end, 1)) for number, end in ENDS.items()}


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """Return the two machines; the changelog has ten records of each partition."""
    broker = InMemoryBroker()
    broker.create_topic(LOG, 2)
    for number in (0, 1):
        broker.produce(TopicPartition(LOG, number), *[b"v"] * 10)
    table = Table(broker)
    monkeypatch.setattr(StateOf, "changelog", lambda _: table)
    found = Machines(tmp_path, table)
    found.fill("one", ENDS)
    return found


def test_a_snapshot_is_another_machine_s_store(
    machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows, commits and positions are there, and the first machine has what it had."""
    machines.take()
    assert "2 of 2 partitions of g.in.state written" in capsys.readouterr().out
    machines.put()
    said = capsys.readouterr().out
    assert f"{LOG}-0: from offset 8 on, 2 behind" in said
    assert machines.found("two") == machines.found("one") == WHOLE
    names = {each.name for each in machines.store_folder("two").parent.iterdir()}
    assert names == {"db"} == {each.name for each in machines.store_folder("one").parent.iterdir()}


def test_a_head_says_what_the_snapshot_is_of(machines: Machines) -> None:
    """The document is read as it was written; a database's own lock and log are left out."""
    machines.take()
    head = read_head(machines.snapshot)
    assert (head.channel, head.group, head.cluster) == ("main", "g", "first")
    assert (head.changelog, head.topic_id) == (LOG, machines.table.info.topic_id)
    assert (head.partitions, head.member) == (2, "one")
    assert {number: each.position.offset for number, each in head.follows.items()} == ENDS
    assert head.files.keys() == {each.name for each in (machines.snapshot / FILES).iterdir()}
    assert not [name for name in head.files if name.startswith("LO")]
    assert SnapshotHead.of(json.loads(json.dumps(head.document())), machines.snapshot) == head


def test_a_snapshot_replaces_an_older_store_and_a_store_of_a_former_topic(
    machines: Machines,
) -> None:
    """A store that has nothing beyond the snapshot is replaced, also by the same one again."""
    machines.fill("two", {0: 3})
    machines.take()
    machines.put()
    assert machines.found("two") == WHOLE
    machines.put()
    assert machines.found("two") == WHOLE


def recreate(machines: Machines) -> None:
    """Delete the changelog and create it again."""
    machines.table.broker.delete_topic(LOG)
    machines.table.broker.create_topic(LOG, 2)


def cut_begin(machines: Machines) -> None:
    """Delete records before an offset of the changelog that is later than the snapshot's."""
    machines.table.broker.expire(TopicPartition(LOG, 1), 6)


def cut_end(machines: Machines) -> None:
    """Let the changelog end before the snapshot's offset."""
    machines.table.broker.truncate(TopicPartition(LOG, 0), 7)


def age(machines: Machines) -> None:
    """Take the snapshot of a store that was noted two hours ago."""
    shutil.rmtree(machines.snapshot)
    machines.fill("one", ENDS, time.time() - 7200)
    machines.take()


def claim_less(machines: Machines) -> None:
    """Let the snapshot say of a partition that its rows are of an earlier offset."""
    follows = json.loads((machines.snapshot / HEAD).read_text())["follows"]
    machines.change_head(follows={**follows, "0": {**follows["0"], "offset": 7}})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda each: setattr(each.table.catalog, "cluster", "second"), "of the cluster first"),
        (recreate, "it was made again"),
        (lambda each: each.table.broker.create_topic(LOG, 3), "had 2 partitions, and has 3 now"),
        (cut_begin, "g.in.state-1 at offset 5 cannot be continued: the changelog has 6 to 10"),
        (cut_end, "g.in.state-0 at offset 8 cannot be continued: the changelog has 0 to 7"),
        (age, "the changelog keeps deletions for 3600 s"),
        (lambda each: each.change_head(group="h"), "is of group h"),
        (lambda each: each.change_head(changelog="h.in.state"), "and h.in.state, and channel"),
        (lambda each: each.change_head(headrace_snapshot=2), "has format version 2"),
        (lambda each: each.change_head(follows={"0": {}}), "is not what headrace state snapshot"),
        (claim_less, "follow g.in.state to other offsets"),
        (lambda each: (each.snapshot / HEAD).write_text("{"), "is no JSON"),
        (lambda each: (each.snapshot / HEAD).unlink(), "name the folder that headrace"),
        (lambda each: each.change_head(headrace_snapshot=None), "has no headrace_snapshot"),
        (
            lambda each: each.change_head(files={"../a": {"bytes": 0, "sha256": ""}}),
            "is no file of the folder db",
        ),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused(
    machines: Machines, change: Callable[[Machines], object], said: str
) -> None:
    """The reason is named, and the store that was there is left as it was."""
    machines.fill("two", {0: 3})
    machines.take()
    change(machines)
    with pytest.raises(UsageError, match=said):
        machines.put()
    with closing(RocksStore(machines.store_folder("two"))) as store:
        store.open()
        assert {n: each.offset for n, each in store.positions().items()} == {0: 3}


def test_a_snapshot_of_a_log_that_leads_there_no_more_is_refused(machines: Machines) -> None:
    """The changelog is long enough again, under another leader that had less."""
    machines.take()
    cut_end(machines)
    machines.table.broker.produce(TopicPartition(LOG, 0), *[b"w"] * 5)
    with pytest.raises(UsageError, match="lost its end"):
        machines.put()


def test_a_file_that_is_another_one_is_refused_by_name(machines: Machines) -> None:
    """One byte of a table, a file that is cut, and one that is missing."""
    machines.take()
    table = next((machines.snapshot / FILES).glob("*.sst"))
    data = table.read_bytes()
    for found, said in (
        (data[:-1] + bytes([data[-1] ^ 1]), "is not what was written"),
        (data[:-1], f"has {len(data) - 1} bytes"),
    ):
        table.write_bytes(found)
        with pytest.raises(UsageError, match=said):
            machines.put()
    table.unlink()
    with pytest.raises(UsageError, match=f"{table.name} is missing"):
        machines.put()
    assert list(machines.store_folder("two").parent.iterdir()) == []


@pytest.mark.parametrize("present", [{0: 9}, {0: 8, 1: 5, 2: 1}])
def test_a_store_that_has_more_is_kept(machines: Machines, present: Mapping[int, int]) -> None:
    """A later offset, or a partition that the snapshot has not; deleting it is for people."""
    machines.fill("two", present)
    machines.take()
    with pytest.raises(UsageError, match="has more of partitions"):
        machines.put()
    assert {n: offset for n, (offset, *_) in machines.found("two").items()} == present
    shutil.rmtree(machines.store_folder("two"))
    machines.put()
    assert machines.found("two") == WHOLE


def test_a_store_that_is_corrupt_is_replaced(
    machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has nothing that a start would continue from; what was wrong with it is said."""
    machines.fill("two", {0: 9})
    machines.take()
    (manifest,) = machines.store_folder("two").glob("MANIFEST-*")
    manifest.write_bytes(bytes(0xFF ^ each for each in manifest.read_bytes()))
    machines.put()
    assert "what is here is replaced: " in capsys.readouterr().err
    assert machines.found("two") == WHOLE


def test_a_store_of_a_process_that_runs_is_not_replaced(machines: Machines) -> None:
    """Also where it has opened no store yet: it holds its instance_id."""
    machines.take()
    identity = Identity(machines.folder / "two", "two")
    identity.acquire()
    try:
        with pytest.raises(ChannelRunningError, match="is in use by process"):
            machines.put()
    finally:
        identity.release()
    assert not machines.store_folder("two").exists()
    machines.put()
    assert machines.found("two") == WHOLE


def test_a_store_of_a_process_without_an_answer_is_not_copied(machines: Machines) -> None:
    """The process has the files open, and no API is found by the configuration."""
    with closing(RocksStore(machines.store_folder("one"))) as store:
        store.open()
        with pytest.raises(HeadraceError, match=r"none\.yaml"):
            machines.take()
    assert not machines.snapshot.exists()


def test_a_folder_with_something_in_it_is_not_written_to(machines: Machines) -> None:
    """One that is empty is taken."""
    machines.snapshot.mkdir()
    (machines.snapshot / "notes").write_text("")
    with pytest.raises(UsageError, match="is not an empty folder"):
        machines.take()
    (machines.snapshot / "notes").unlink()
    machines.take()
    assert read_head(machines.snapshot).follows.keys() == {0, 1}
    assert not list(machines.folder.glob(".snapshot*"))


def test_a_store_of_a_former_changelog_is_no_snapshot(machines: Machines) -> None:
    """A start would drop all of it."""
    recreate(machines)
    with pytest.raises(UsageError, match="there is nothing to copy"):
        machines.take()


def test_a_store_that_is_being_replaced_is_read_by_no_other_command(machines: Machines) -> None:
    """The next restore finishes a replacement that was ended in between."""
    machines.take()
    place = machines.store_folder("two")
    shutil.copytree(machines.snapshot / FILES, place.with_name("db.new"))
    with pytest.raises(UsageError, match="was ended while it replaced"):
        StateOf.of(machines.config("two"), None).open_store()
    machines.put()
    assert machines.found("two") == WHOLE
    assert [each.name for each in place.parent.iterdir()] == ["db"]
