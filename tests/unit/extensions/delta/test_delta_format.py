"""Two versions of Headrace at one table, and tables that do not keep what they write."""

from __future__ import annotations

import json
from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from headrace.core.errors import SinkFailedError, StartError
from headrace.core.records import TopicPartition
from headrace.extensions.delta.maintenance import MaintenanceOrder, carry_out
from headrace.extensions.delta.reader import DeltaLog
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.delta.table import FORMAT_KEY, FORMAT_VERSION, RETENTION_PROPERTY, LogFiles
from headrace.sinks.contract import OffsetMove
from tests.unit.extensions.delta.delta_tables import share, stage, visible

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def commit_in(folder: Path, version: int, **offsets: int) -> None:
    """Write as a version of Headrace would: its note and some offsets, without rows."""
    table = DeltaTable(folder)
    moved = [Transaction(identity, offset) for identity, offset in offsets.items()]
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        commit_properties=CommitProperties(
            app_transactions=[Transaction(FORMAT_KEY, version), *moved]
        ),
    )


def test_the_format_is_noted_once(sink: DeltaSink, folder: Path) -> None:
    """The first commit writes the format's version, later ones do not; readers do not see it."""
    sink.commit(stage(sink, "two", [2]), [share(0, 10, 20)])
    assert DeltaTable(folder).transaction_version(FORMAT_KEY) == 1
    first = (folder / "_delta_log" / f"{1:020}.json").read_text()
    second = (folder / "_delta_log" / f"{2:020}.json").read_text()
    assert (FORMAT_KEY in first, FORMAT_KEY in second) == (True, False)
    assert [commit.offsets for commit in DeltaLog(folder).read_new()][1:] == [
        {"id/0": 10},
        {"id/0": 20},
    ]


def test_a_table_without_a_note_is_of_the_first_format(
    opened: Callable[[], DeltaSink], folder: Path
) -> None:
    """Offsets of a table without a version still count, and the next move writes the version."""
    DeltaTable.create(folder, pa.schema([("id", pa.int64())]))
    table = DeltaTable(folder)
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction("id/0", 10)]),
    )
    sink = opened()
    assert sink.stored_offset("id/0") == 10
    sink.move_offsets([OffsetMove("id/0", TopicPartition("t", 0), 10, 5)], "note")
    assert DeltaTable(folder).transaction_version(FORMAT_KEY) == 1


def test_two_that_note_it_at_the_same_time_both_commit(
    opened: Callable[[], DeltaSink], folder: Path
) -> None:
    """The second one's commit conflicts once, and is made again on what the first one noted."""
    first, second = opened(), opened()
    DeltaTable.create(folder, pa.schema([("id", pa.int64())]))
    assert first.stored_offset("id/0") is second.stored_offset("id/1") is None
    first.commit(stage(first, "one", [1]), [share(0, 0, 10)])
    second.commit(stage(second, "two", [2]), [share(1, 0, 10)])
    assert visible(folder) == [1, 2]
    assert DeltaSink(folder).stored_offset("id/1") == 10


def test_a_later_format_is_refused(sink: DeltaSink, folder: Path) -> None:
    """A table of a later format is neither opened nor read nor written."""
    commit_in(folder, FORMAT_VERSION + 1, **{"id/0": 20})
    later = f"format version {FORMAT_VERSION + 1}"
    with pytest.raises(StartError, match=later):
        DeltaSink(folder).open()
    with pytest.raises(StartError, match="upgrade this member"):
        sink.stored_offset("id/0")
    staged = stage(sink, "two", [2])
    with pytest.raises(StartError):
        sink.commit(staged, [share(0, 20, 30)])
    sink.discard(staged)
    with pytest.raises(StartError):
        sink.move_offsets([OffsetMove("id/0", TopicPartition("t", 0), 20, 5)], "note")
    assert visible(folder) == [1]
    assert DeltaTable(folder).transaction_version("id/0") == 20


def test_a_member_at_work_notices_a_later_format(sink: DeltaSink, folder: Path) -> None:
    """A member whose table was upgraded by a later version is refused at its next commit."""
    commit_in(folder, FORMAT_VERSION + 1, **{"id/0": 25})
    staged = stage(sink, "two", [2])
    with pytest.raises(StartError):
        sink.commit(staged, [share(0, 10, 20)])
    sink.discard(staged)
    assert visible(folder) == [1]


def set_retention(folder: Path, duration: str) -> None:
    """Set how long the table keeps its transactions."""
    DeltaTable(folder).alter.set_table_properties({RETENTION_PROPERTY: duration})


def unset_retention(folder: Path) -> None:
    """Take the property away as ALTER TABLE ... UNSET does: a version with the metadata alone."""
    entries = LogFiles(folder)
    version = DeltaTable(folder).version()
    metadata = next(a for a in entries.read(version) or () if "metaData" in a)
    del metadata["metaData"]["configuration"][RETENTION_PROPERTY]
    entries.entry(version + 1).write_text(json.dumps(metadata))


def test_a_table_that_forgets_offsets_is_refused_at_the_start(
    sink: DeltaSink, opened: Callable[[], DeltaSink], folder: Path
) -> None:
    """The error names property, table and remedy; without the property the table opens."""
    sink.close()
    set_retention(folder, "interval 1 days")
    with pytest.raises(StartError) as refused:
        DeltaSink(folder).open()
    assert str(refused.value).startswith(f"{folder}: the table's property {RETENTION_PROPERTY} is ")
    assert f"ALTER TABLE delta.`{folder}` UNSET TBLPROPERTIES" in str(refused.value)

    unset_retention(folder)

    assert opened().stored_offset("id/0") == 10


def test_a_range_is_not_accepted_again_after_its_offset_was_forgotten(
    sink: DeltaSink, folder: Path
) -> None:
    """Set while a member is at work, the property has it refuse to read and to write."""
    set_retention(folder, "interval 0 seconds")
    DeltaTable(folder).create_checkpoint()
    assert DeltaTable(folder).transaction_version("id/0") is None
    again = stage(sink, "again", [1])
    with pytest.raises(StartError, match=RETENTION_PROPERTY):
        sink.commit(again, [share(0, 0, 10)])
    with pytest.raises(StartError, match=RETENTION_PROPERTY):
        sink.stored_offset("id/0")
    with pytest.raises(StartError, match=RETENTION_PROPERTY):
        sink.move_offsets([OffsetMove("id/0", TopicPartition("t", 0), 10, 5)], "note")
    sink.discard(again)
    assert visible(folder) == [1]


def test_a_property_set_between_two_commits_is_noticed_by_the_second(
    sink: DeltaSink, folder: Path
) -> None:
    """Although no offset conflicts; once it is gone the same files are committed."""
    set_retention(folder, "interval 1 days")
    staged = stage(sink, "two", [2])
    with pytest.raises(StartError):
        sink.commit(staged, [share(0, 10, 20)])

    unset_retention(folder)

    sink.commit(staged, [share(0, 10, 20)])
    assert visible(folder) == [1, 2]
    assert sink.stored_offset("id/0") == 20


def test_no_checkpoint_of_ours_forgets_offsets(
    sink: DeltaSink, folder: Path, tmp_path: Path
) -> None:
    """With the property none is written, and the error names it."""
    set_retention(folder, "interval 0 seconds")
    with pytest.raises(SinkFailedError, match=rf"StartError.*{RETENTION_PROPERTY}"):
        carry_out(MaintenanceOrder("checkpoint", str(folder), str(tmp_path)), Event())
    assert LogFiles(folder).checkpoint() == -1
    unset_retention(folder)
    assert sink.stored_offset("id/0") == 10
