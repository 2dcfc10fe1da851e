"""State by key, as the API shows it."""

from __future__ import annotations

import json
import re
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console
from structlog.testing import capture_logs
from typer.testing import CliRunner

from headrace.coordinators.znodes import GroupPaths, MemberDocument
from headrace.core.errors import UsageError
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.keyed.phases import PhaseReader
from headrace.extensions.keyed.restore import RestoreProgress
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.standby_reader import StandbyProgress
from headrace.extensions.keyed.state import CommittedRows, Layer, LayeredState, Progress
from headrace.extensions.keyed.state_reader import StateReader
from headrace.extensions.keyed.store import RocksStore
from headrace.keyed import Phase, Phases, at_clock, at_event
from headrace.ops.admin.client import AnswerError
from headrace.ops.admin.commands import state_of_key, states, status
from headrace.ops.admin.tables import show
from headrace.ops.admin.top import Top
from headrace.ops.state.cli import app as state_app
from headrace.telemetry.metrics import OperatorSnapshot, PoolSnapshot
from headrace.testing import in_memory_channel, running
from tests.unit.channel.in_memory import eventually
from tests.unit.channel.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from headrace.ops.admin.client import AdminClient
    from tests.unit.ops.admin.scene import Scene

STATE = "/api/v1/channels/member/state"
SNAPSHOT = "/api/v1/channels/member/snapshot"

#: A key of each of the two partitions.
FIRST, SECOND = "a", "d"


def test_the_two_keys_are_of_two_partitions() -> None:
    """The tests below rely on it."""
    assert (partition_of(b"a", 2), partition_of(b"d", 2)) == (0, 1)


@dataclass
class Copies:
    """Copies of other members' partitions, which are as far as a test says."""

    store: RocksStore
    places: dict[int, StandbyProgress] = field(default_factory=dict)

    def progress(self) -> dict[int, StandbyProgress]:
        """Return how far each is."""
        return self.places

    def readable(self) -> list[int]:
        """Return all of them."""
        return sorted(self.places)

    @contextmanager
    def reading(self, number: int) -> Iterator[CommittedRows]:
        """Yield what the store has of a partition."""
        yield CommittedRows(self.store, number, self.places[number])


@dataclass
class Kept:
    """The state of a channel, which a test writes as commits do."""

    store: RocksStore
    held: set[int] = field(default_factory=lambda: {0, 1})
    restoring: dict[int, RestoreProgress] = field(default_factory=dict)
    phases: Phases | None = None

    def __post_init__(self) -> None:
        self.state = LayeredState(self.store)
        self.copies = Copies(self.store)
        self.reader = StateReader(
            self.state,
            self.store,
            lambda: self.held,
            lambda: self.restoring,
            phases=self.phases,
            topics_of=lambda number: {f"id/{number}": "events"},
            copies=lambda: self.copies,
        )
        for number in (0, 1):
            self.admit(number)

    def admit(self, number: int) -> None:
        """Admit a partition's state and measure it."""
        self.state.admit(number)
        for _ in self.store.measure(number):
            pass

    def commit(self, number: int, rows: dict[bytes, KeyRow | None], time: int = 5_000) -> None:
        """Commit rows."""
        before = self.state.progress(number)
        layer = self.stage(number, rows)
        progress = before.moved(
            f"id/{number}", (before.offset or 0) + len(rows), before.number + 1, time
        )
        self.state.apply([layer], {number: progress})

    def stage(self, number: int, rows: dict[bytes, KeyRow | None]) -> Layer:
        """Stage rows, and commit nothing."""
        changes = {}
        for key, row in rows.items():
            name = PartitionKey(number, key)
            (former,) = self.state.get_many([name])
            changes[name] = RowChange(former, row)
        layer = Layer(
            f"{number}-{self.state.progress(number).number}", ChangedRows.of(changes), {number: 0}
        )
        self.state.stage(layer)
        return layer


class WithState(Recorder):
    """A processor that shows a test's state."""

    def __init__(self, kept: Kept) -> None:
        super().__init__()
        self.kept = kept

    def state_reader(self) -> StateReader:
        """Return what reads it."""
        return self.kept.reader


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """Return the state of a channel of two partitions, empty."""
    store = RocksStore(tmp_path / "db")
    store.open()
    yield Kept(store)
    store.close()


def with_state(scene: Scene, kept: Kept, **processor: Any) -> Any:
    """Return a running channel with this state."""
    chosen = {"type": "keyed", "reducer": "json:dumps", "engine": "arrow", **processor}
    return running(scene.controller.add(WithState(kept), processor=chosen))


def problem(answer: httpx.Response, status: int) -> tuple[str, str]:
    """Return an answer's error and message; its status is this one."""
    assert answer.status_code == status, answer.text
    found = answer.json()
    return found["error"], found["message"]


def test_a_key_has_its_committed_state_timers_and_offset(bare: Scene, kept: Kept) -> None:
    """Staged changes are not shown, and times are UTC."""
    row = KeyRow.of(b'{"n":2}', {"quiet": at_event(61_000), "now": at_clock(1_000)})
    kept.commit(0, {FIRST.encode(): row})
    kept.stage(0, {FIRST.encode(): KeyRow(b'{"n":3}')})
    with with_state(bare, kept):
        answer = bare.get(f"{STATE}/{FIRST}")
    assert answer.status_code == 200
    assert answer.json() == {
        "key": "a",
        "hex": False,
        "partition": 0,
        "state": {"n": 2},
        "timers": [
            {"name": "now", "due": "1970-01-01T00:00:01Z", "clock": "clock"},
            {"name": "quiet", "due": "1970-01-01T00:01:01Z", "clock": "event"},
        ],
        "quarantined": None,
        "problem": None,
        "stream_time": "1970-01-01T00:00:05Z",
        "offset": 1,
        "offsets": {"events": 1},
        "restored": True,
        "standby": None,
    }


def test_a_key_of_two_topics_has_the_offset_of_each(bare: Scene, kept: Kept) -> None:
    """A sum of both would be the offset of none."""
    kept.reader = StateReader(
        kept.state,
        kept.store,
        lambda: kept.held,
        lambda: kept.restoring,
        topics_of=lambda number: {f"id/{number}": "events", f"other/{number}": "more"},
    )
    layer = kept.stage(0, {b"a": KeyRow(b"1")})
    kept.state.apply([layer], {0: Progress({"id/0": 10, "other/0": 7}, 1, 5_000)})
    with with_state(bare, kept):
        found = bare.get(f"{STATE}/a?partition=0").json()
    assert (found["offset"], found["offsets"]) == (None, {"events": 10, "more": 7})


def test_an_unwritten_commit_is_read_with_its_offset(
    bare: Scene, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit in memory counts as committed: row and offset are its own, in lists too."""
    kept.commit(0, {b"a": KeyRow(b"1"), b"c": KeyRow(b"1")})
    with monkeypatch.context() as full:
        full.setattr(kept.store, "flush", _full)
        kept.commit(0, {b"a": KeyRow(b"2"), b"c": None})
        assert not kept.state.flush()
        with with_state(bare, kept):
            found = bare.get(f"{STATE}/a").json()
            listed = bare.get(STATE).json()["keys"]
    assert (found["state"], found["offset"]) == (2, 4)
    assert [(each["key"], each["state"]) for each in listed] == [("a", 2)]


def _full(*_: object) -> None:
    raise StateStoreError("no space left on device")


def test_a_key_without_state_is_told_with_its_partition(bare: Scene, kept: Kept) -> None:
    """The key is named, and where it would be."""
    with with_state(bare, kept):
        name, message = problem(bare.get(f"{STATE}/d"), 404)
        assert name == "unknown_key"
        assert message == "channel member has no state of key d; it would be in partition 1"


def test_a_channel_without_state_is_told(scene: Scene) -> None:
    """The type of its processor is named, for each of the endpoints."""
    for path in (STATE, f"{STATE}/a", "/api/v1/channels/member/tasks"):
        name, message = problem(scene.get(path), 404)
        assert name == "no_state"
        assert "its processor is of type custom" in message
    assert problem(scene.post(SNAPSHOT), 404)[0] == "no_state"


def test_a_snapshot_has_the_files_as_they_are(bare: Scene, kept: Kept) -> None:
    """Rows committed before are in the folder, later ones are not; the log has who asked."""
    kept.commit(0, {b"a": KeyRow(b"1")})
    with with_state(bare, kept), capture_logs() as logged:
        folder = Path(bare.post(SNAPSHOT, by="ann").json()["folder"])
        kept.commit(0, {b"a": KeyRow(b"2")})
        assert bare.get(f"{STATE}/a").json()["state"] == 2
    with closing(RocksStore(folder)) as copied:
        copied.open_to_read()
        assert copied.get_many([PartitionKey(0, b"a")]) == [KeyRow(b"1")]
    (change,) = [each for each in logged if each["event"] == "admin_change"]
    assert (change["action"], change["by"], change["outcome"]) == ("snapshot", "ann", "done")


def test_a_snapshot_takes_the_token(bare: Scene, kept: Kept) -> None:
    """The files have what records brought; a store that cannot be read is said."""
    with with_state(bare, kept):
        assert bare.client.post(SNAPSHOT, json={}).status_code == 401
        kept.store.close()
        name, message = problem(bare.post(SNAPSHOT), 503)
    assert name == "unavailable"
    assert "is not open" in message


def test_a_key_of_a_partition_that_is_restored_is_503(bare: Scene, kept: Kept) -> None:
    """The answer has progress and a time to retry; other keys are readable."""
    kept.commit(0, {b"a": KeyRow(b"1")})
    kept.state.release(1)
    kept.restoring[1] = RestoreProgress(34, 100, 12.2)
    with with_state(bare, kept) as channel:
        eventually(lambda: len(channel.partitions()) == 2)
        answer = bare.get(f"{STATE}/d")
        name, message = problem(answer, 503)
        assert (name, message) == ("restoring", "events-1: restoring 34 %, 12 s left")
        assert answer.headers["retry-after"] == "12"
        assert bare.get(f"{STATE}/a").json()["state"] == 1
        page = bare.get(STATE).json()
        first, second = bare.get("/api/v1/channels/member/partitions").json()["partitions"]
        tasks = bare.get("/api/v1/channels/member/tasks").json()["tasks"]
    status = {"done": 34, "total": 100, "percent": 34.0, "left_s": 12.2}
    assert page["restoring"] == [{"partition": 1, "progress": status}]
    assert (first["restoring"], second["restoring"]) == (None, status)
    assert [(each["restored"], each["restoring"]) for each in tasks] == [
        (True, None),
        (False, status),
    ]


@pytest.mark.parametrize("becomes", ["restored", "given up"])
def test_a_key_whose_partition_changes_while_it_is_looked_for_is_503(
    bare: Scene, kept: Kept, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    """It was not looked into, so nothing says that there is no such key."""
    kept.commit(1, {b"d": KeyRow(b"1")})
    find = kept.reader.find

    def find_and_change(key: bytes, partition: int | None = None) -> list[Any]:
        if becomes == "given up":
            kept.held = {0}
            kept.state.release(1)
        found = find(key, partition)
        if becomes == "restored":
            kept.state.admit(1)
        return found

    with with_state(bare, kept) as channel:
        eventually(lambda: len(channel.partitions()) == 2)
        if becomes == "restored":
            kept.state.release(1)
        monkeypatch.setattr(kept.reader, "find", find_and_change)
        name, _ = problem(bare.get(f"{STATE}/d"), 503)
    assert name == ("restoring" if becomes == "restored" else "not_owned")


def test_tasks_have_rows_bytes_and_timers(bare: Scene, kept: Kept) -> None:
    """Counts follow writes and deletions, from any rows at their start."""
    timed = KeyRow.of(b"1", {"x": at_event(1), "y": at_clock(2)})
    kept.commit(0, {b"a": KeyRow(b"12"), b"b": timed})
    kept.commit(0, {b"c": KeyRow.of(None, {}, "it raised"), b"a": None})
    kept.admit(0)
    kept.commit(0, {b"b": KeyRow.of(b"1", {"x": at_event(3)}), b"d": KeyRow(b"4")})
    with with_state(bare, kept):
        first, second = bare.get("/api/v1/channels/member/tasks").json()["tasks"]
        whole = bare.get("/api/v1/channels/member").json()["state_by_key"]
        metrics = bare.get("/metrics").text
    rows = dict(kept.store.rows(0))
    written = sum(
        len(key) + 4 + len(row.extra or b"") + len(row.state or b"") for key, row in rows.items()
    )
    assert (first["rows"], first["bytes"]) == (3, written)
    assert (first["timers"], first["quarantined"]) == (1, 1)
    assert (first["offset"], first["commits"]) == (6, 3)
    assert first["stream_time"] == "1970-01-01T00:00:05Z"
    assert (whole["rows"], whole["timers"], whole["quarantined"]) == (3, 1, 1)
    assert (whole["bytes"], whole["restoring"]) == (first["bytes"], 0)
    assert whole["stream_time_lag_s"] > 0
    assert 'headrace_keyed_rows{channel="member"} 3.0' in metrics
    assert (second["rows"], second["offset"], second["stream_time"]) == (0, None, None)


class WithPool(WithState):
    """One that has threads of its own, too."""

    def pool_snapshot(self) -> PoolSnapshot:
        """Say what they do."""
        return PoolSnapshot(4, 3, 2, {"returned": 5, "not_stored": 1}, left=1)


class WithBrokenPool(WithState):
    """One that cannot say it."""

    def pool_snapshot(self) -> PoolSnapshot:
        """Fail."""
        raise ValueError("no lock")


def test_a_processor_without_a_pool_snapshot_does_no_harm(bare: Scene, kept: Kept) -> None:
    """Status and metrics are served without its pool, and the log has the reason."""
    chosen = {"type": "keyed", "reducer": "json:dumps", "engine": "arrow"}
    channel = bare.controller.add(WithBrokenPool(kept), processor=chosen)
    with running(channel), capture_logs() as logged:
        whole = bare.get("/api/v1/channels/member").json()
        metrics = bare.get("/metrics").text
    assert whole["pool"] is None
    assert 'headrace_keyed_rows{channel="member"} 0.0' in metrics
    said = [each for each in logged if each["event"] == "pool_unknown"]
    assert [(each["channel"], each["error"]) for each in said] == [
        ("member", "ValueError: no lock")
    ] * 2


def test_phases_and_a_pool_stand_in_status_metrics_and_table(bare: Scene, tmp_path: Path) -> None:
    """Keys by phase with the oldest, sums and counts, busy threads; elsewhere there are none."""
    phases = Phases(
        lambda state: Phase(*state), ("open", "closed"), ("calls_in_flight",), ("attempts",)
    )
    store = RocksStore(tmp_path / "db", 0, PhaseReader("g", phases, json.loads))
    store.open()
    kept = Kept(store, phases=phases)
    rows = {b"a": b'["open", 1000, [2], [3]]', b"b": b'["closed", null, [0], [4]]'}
    kept.commit(0, {key: KeyRow(state) for key, state in rows.items()})
    chosen = {"type": "keyed", "reducer": "json:dumps", "engine": "arrow"}
    with running(bare.controller.add(WithPool(kept), processor=chosen)):
        whole = bare.get("/api/v1/status").json()
        metrics = bare.get("/metrics").text
    store.close()
    (channel,) = whole["channels"]
    state = channel["state_by_key"]
    first, second = state["phases"]
    assert (first["name"], first["keys"], first["oldest_s"] > 1e9) == ("open", 1, True)
    assert second == {"name": "closed", "keys": 1, "oldest_s": None}
    assert (state["amounts"], state["counts"]) == ({"calls_in_flight": 2}, {"attempts": 7})
    ended = {"returned": 5, "not_stored": 1}
    assert channel["pool"] == {"threads": 4, "busy": 3, "waiting": 2, "ended": ended, "left": 1}
    assert 'headrace_keyed_phase_keys{channel="member",phase="open"} 1.0' in metrics
    assert 'headrace_keyed_counts_total{channel="member",count="attempts"} 7.0' in metrics
    assert 'headrace_pool_threads{channel="member",state="idle"} 1.0' in metrics
    channel["totals"]["overflow_records"] = 9
    printed = StringIO()
    show(whole, [channel], Console(file=printed, width=200))
    lines = printed.getvalue().splitlines()
    overflow = lines.index("overflow: 9 records")
    keys, counts, pool = lines[overflow + 1 : overflow + 4]
    assert re.fullmatch(r"keys: open 1 \(oldest \d+d \d+h\) · closed 1", keys)
    assert counts == "calls in flight 2 · attempts 7"
    threads, calls = pool.split(" · waiting 2 · ")
    assert threads == "pool: 3 of 4 threads busy · left to calls that hang 1"
    assert calls == "returned 5 · not stored 1"


def test_standbys_stand_in_status_tasks_and_tables(bare: Scene, kept: Kept) -> None:
    """Each copy is there with how far it is behind, and its keys are shown by no endpoint."""
    copies = {7: StandbyProgress(80, 12), 5: StandbyProgress(0, None, "no leader")}
    kept.reader = StateReader(
        kept.state, kept.store, lambda: kept.held, dict, copies=lambda: Copies(kept.store, copies)
    )
    put = RowChange(None, KeyRow(b"1"))
    kept.store.put([ChangedRows.of([(PartitionKey(7, b"theirs"), put)])])
    with with_state(bare, kept):
        whole = bare.get("/api/v1/status").json()
        tasks = bare.get("/api/v1/channels/member/tasks").json()
        page = bare.get(STATE).json()
        name, _ = problem(bare.get(f"{STATE}/theirs?partition=7"), 404)
    (channel,) = whole["channels"]
    assert tasks["standbys"] == channel["state_by_key"]["standbys"]
    assert tasks["standbys"] == [
        {"partition": 5, "position": 0, "lag": None, "problem": "no leader"},
        {"partition": 7, "position": 80, "lag": 12, "problem": None},
    ]
    assert [each["partition"] for each in tasks["tasks"]] == [0, 1]
    assert (page["keys"], name) == ([], "unknown_key")
    printed = StringIO()
    console = Console(file=printed, width=200)
    show(whole, [channel], console)
    console.print(Top(console, partitions=1).table(whole))
    lines = [" ".join(line.split()) for line in printed.getvalue().splitlines()]
    assert "partition 7 80 12 -" in lines
    assert "member partition 5 0 - no leader" in lines


def test_operators_of_a_topology_stand_in_status_metrics_and_tables(
    bare: Scene, kept: Kept
) -> None:
    """A figure that an operator has not, or that is not known, is null and an empty cell."""
    operators = (
        OperatorSnapshot("t", "people", "table", "table", {"records": 5}, rows=3, bytes=70),
        OperatorSnapshot("t", "settled", "join", None, {"records": 9, "late": 0, "alone": 1200}),
    )
    kept.reader = StateReader(
        kept.state, kept.store, lambda: kept.held, dict, operators=lambda *_: operators
    )
    with with_state(bare, kept):
        whole = bare.get("/api/v1/status").json()
        metrics = bare.get("/metrics").text
    (channel,) = whole["channels"]
    people, settled = channel["state_by_key"]["operators"]
    assert (people["kind"], people["rows"], people["bytes"], people["late"]) == (
        "table",
        3,
        70,
        None,
    )
    assert (settled["alone"], settled["closed"], settled["operator_time_lag_s"]) == (
        1200,
        None,
        None,
    )
    labels = 'channel="member",operator="settled",topology="t"'
    assert f"headrace_streams_alone_total{{{labels}}} 1200.0" in metrics
    channel["totals"]["enforced"] = 4
    printed = StringIO()
    show(whole, [channel], Console(file=printed, width=200))
    lines = [" ".join(line.split()) for line in printed.getvalue().splitlines()]
    assert "enforced: 4 pieces of work did not wait for all topics" in lines
    table = lines.index("operator records late alone closed skipped rows bytes time lag")
    assert lines[table + 1] == "table people 5 - - - - 3 70 -"
    assert lines[table + 2] == "join settled 9 0 1,200 - - - - -"
    printed = StringIO()
    console = Console(file=printed, width=200)
    console.print(Top(console, partitions=1).table(whole))
    lines = [" ".join(line.split()) for line in printed.getvalue().splitlines()]
    assert "member join settled 9 0 1,200 - - - - -" in lines


def test_pages_follow_each_other_to_the_last_key(bare: Scene, kept: Kept) -> None:
    """Each key once, by partition and key, whatever the page's size; a prefix chooses."""
    for number in (0, 1):
        names = [f"{start}/{number}{index}" for start in ("x", "y") for index in range(3)]
        kept.commit(number, {name.encode(): KeyRow(b"1") for name in names})
    with with_state(bare, kept):
        for prefix, count in (("", 12), ("x/", 6), ("x/1", 3), ("z", 0)):
            for limit in (1, 4, 100):
                found, after = [], None
                while True:
                    query = {"prefix": prefix, "limit": limit} | ({"after": after} if after else {})
                    page = bare.client.get(STATE, headers=bare.trusted, params=query).json()
                    assert len(page["keys"]) <= limit
                    found += [(each["partition"], each["key"]) for each in page["keys"]]
                    after = page["next"]
                    if after is None:
                        break
                assert len(found) == count
                assert found == sorted(set(found))
        one = bare.get(f"{STATE}?partition=1").json()["keys"]
    assert {each["partition"] for each in one} == {1}


def test_a_page_counts_partitions_of_other_members(bare: Scene, kept: Kept) -> None:
    """Partitions of other members are counted."""
    kept.held = {1}
    with with_state(bare, kept):
        assert bare.get(STATE).json()["elsewhere"] == 1


@pytest.mark.parametrize("key", ["x/y", '["a","b"]', "?", "é %2F", "a b", ""])
def test_any_text_is_a_key(bare: Scene, kept: Kept, key: str) -> None:
    """Percent-encoded, with slashes, as an array of parts, and empty."""
    from urllib.parse import quote  # noqa: PLC0415 - beside its one use

    kept.commit(1, {key.encode(): KeyRow(b"7")})
    with with_state(bare, kept):
        found = bare.get(f"{STATE}/{quote(key, safe='')}").json()
    assert (found["key"], found["state"]) == (key, 7)


def test_keys_of_bytes_are_hexadecimal(bare: Scene, kept: Kept) -> None:
    """In answers, as prefix and in the path; anything else is refused by name."""
    kept.commit(0, {b"\xff\x00": KeyRow(b"1")})
    with with_state(bare, kept, keys="bytes"):
        found = bare.get(f"{STATE}/ff00").json()
        assert (found["key"], found["hex"]) == ("ff00", True)
        assert bare.get(f"{STATE}?prefix=ff").json()["keys"] == [found]
        name, message = problem(bare.get(f"{STATE}/fg"), 422)
        assert (name, message) == (
            "invalid_key",
            "fg is not in hexadecimal digits, two for each byte",
        )


def test_a_key_that_is_no_text_is_shown_and_found_by_its_digits(bare: Scene, kept: Kept) -> None:
    """A key of bytes that are not UTF-8 is given in hexadecimal digits."""
    kept.commit(0, {b"\xff": KeyRow(b"1")})
    with with_state(bare, kept):
        (found,) = bare.get(STATE).json()["keys"]
        assert (found["key"], found["hex"]) == ("ff", True)
        assert bare.get(f"{STATE}/ff?hex=true").json() == found


@pytest.mark.parametrize(
    ("encoding", "stored", "shown"),
    [("string", "é".encode(), "é"), ("bytes", b"\x00\xff", "AP8="), ("json", b"[1e400]", None)],
)
def test_states_are_shown_by_their_encoding(
    bare: Scene, kept: Kept, encoding: str, stored: bytes, shown: str | None
) -> None:
    """Text as it is, bytes in base64; what JSON has and an answer cannot is null."""
    kept.commit(0, {b"a": KeyRow(stored)})
    with with_state(bare, kept, encoding=encoding):
        found = bare.get(f"{STATE}/a").json()
    assert found["state"] == (shown if shown is not None else [None])
    assert found["problem"] is None


def test_a_state_that_cannot_be_decoded_is_shown_with_the_reason(bare: Scene, kept: Kept) -> None:
    """The state of another writer is shown in base64."""
    kept.commit(0, {b"a": KeyRow(b"{")})
    with with_state(bare, kept):
        found = bare.get(f"{STATE}/a").json()
    assert found["state"] == "ew=="
    assert found["problem"].startswith("it is not json: ")


def test_a_key_in_several_partitions_is_chosen_by_partition(bare: Scene, kept: Kept) -> None:
    """With key: constant it is in each; the answer names them."""
    for number in (0, 1):
        kept.commit(number, {b"": KeyRow(b"%d" % number)})
    with with_state(bare, kept, key="constant"):
        name, message = problem(bare.get(f"{STATE}/"), 409)
        assert (name, message) == ("key_in_several_partitions", "key  is in partitions 0, 1")
        assert bare.get(f"{STATE}/?partition=1").json()["state"] == 1


def test_a_key_that_a_producer_put_elsewhere_is_found(bare: Scene, kept: Kept) -> None:
    """A key is found in a partition that Kafka's own producer would not have chosen."""
    kept.commit(1, {b"a": KeyRow(b"1")})
    with with_state(bare, kept):
        assert bare.get(f"{STATE}/a").json()["partition"] == 1


@pytest.mark.parametrize("after", ["x", "1", "1:0", ":00", "-1:00"])
def test_a_page_after_nonsense_is_refused(bare: Scene, kept: Kept, after: str) -> None:
    """The error names the value that is not the next of a page."""
    with with_state(bare, kept):
        name, message = problem(bare.get(f"{STATE}?after={after}"), 422)
    assert (name, message) == ("invalid_after", f"{after} is not the next of a page")


def _publish(scene: Scene, admin: str | None, warm: frozenset[int] | None = None) -> None:
    """Publish the address of the other member's API, and the tasks that it is warm for."""
    paths, session = GroupPaths("group"), scene.controller.zookeeper.session()
    node = session.get(paths.member("other"))
    document = MemberDocument.decode("", node.data)
    from dataclasses import replace  # noqa: PLC0415 - beside its one use

    document = replace(document, admin=admin, info=replace(document.info, warm=warm))
    session.set(paths.member("other"), document.encode())


@pytest.mark.parametrize("admin", ["https://other.example:9465", None])
def test_a_key_of_another_member_leads_there(bare: Scene, kept: Kept, admin: str | None) -> None:
    """307 where its API is published, else 421 that names the member."""
    other = in_memory_channel(
        Recorder(), bare.controller.broker, zookeeper=bare.controller.zookeeper, member="other"
    )
    with with_state(bare, kept) as channel, running(other):
        eventually(lambda: len(other.partitions()) == 1 == len(channel.partitions()))
        ((_, _, number),) = [(0, 0, each.partition) for each in channel.partitions()]
        kept.held = {number}
        key = SECOND if number == 0 else FIRST
        _publish(bare, admin)
        answer = bare.get(f"{STATE}/{key}")
        if admin is None:
            name, message = problem(answer, 421)
        else:
            name, message = problem(answer, 307)
            place = f"{admin}{STATE}/{key}?partition={1 - number}&led=1"
            assert answer.headers["location"] == place
    assert name == "held_elsewhere"
    assert f"key {key} is in events-{1 - number}, which member other has" in message


def test_states_take_the_token_also_on_loopback(bare: Scene, kept: Kept) -> None:
    """They have what records brought; how much there is takes none."""
    with with_state(bare, kept):
        for path in (STATE, f"{STATE}/a", f"{STATE}/x/y", f"{STATE}/%0a"):
            assert bare.client.get(path).status_code == 401, path
        assert bare.client.get("/api/v1/channels/member/tasks").status_code == 200


#: How a line of the log begins, which goes there as well.
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[")


class Asked:
    """The commands' client, without a network."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def get(self, path: str) -> Any:
        """Read something, or raise what the command is told."""
        answer = self._scene.get(path)
        if answer.is_success:
            return answer.json()
        found = answer.json()
        raise AnswerError(found["message"], answer.status_code, found)


def asked(scene: Scene) -> AdminClient:
    """Return a client of the scene's process."""
    return cast("AdminClient", Asked(scene))


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """Return the lines that commands printed, without those of the log, and their complaints."""
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    return [line for line in lines if not _LOGGED.match(line)], shown.err


def test_the_command_shows_a_key_for_people_and_for_scripts(
    bare: Scene, kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    """Key, place, state, timers and quarantine; with JSON the API's document in one line."""
    row = KeyRow.of(b'{"n":2}', {"quiet": at_event(61_000)}, "it raised")
    kept.commit(0, {b"a": row})
    with with_state(bare, kept):
        for as_json in (False, True):
            command = state_of_key(None, "a", partition=None, is_hex=False, as_json=as_json)
            assert command(asked(bare)) == 0
        expected = bare.get(f"{STATE}/a").json()
    *lines, document = printed(capsys)[0]
    assert lines == [
        "a · partition 0 · of the records before offset 1 · stream time 1970-01-01T00:00:05Z",
        '{"n":2}',
        "timer quiet: 1970-01-01T00:01:01Z (event)",
        "in quarantine: it raised",
    ]
    assert json.loads(document) == expected


def test_the_commands_end_with_4_where_state_is_not_there_yet(
    bare: Scene, kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    """They say how far it is; other refusals are errors."""
    kept.commit(0, {b"a": KeyRow(b"1")})
    kept.state.release(1)
    kept.restoring[1] = RestoreProgress(34, 100, 12.2)
    with with_state(bare, kept):
        get = state_of_key("member", "d", partition=None, is_hex=False, as_json=False)
        assert get(asked(bare)) == 4
        assert "restoring 34 %, 12 s left" in printed(capsys)[1]
        everything = states(None, "", 10, partition=None, is_hex=False, as_json=True)
        assert everything(asked(bare)) == 4
        lines, errors = printed(capsys)
        assert [json.loads(line)["key"] for line in lines] == ["a"]
        assert "partition 1 is not in it: restoring 34 %, 12 s left" in errors
        with pytest.raises(AnswerError, match="no state of key b"):
            state_of_key(None, "b", partition=None, is_hex=False, as_json=False)(asked(bare))


def test_list_asks_for_pages_up_to_its_limit(
    bare: Scene, kept: Kept, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key once; what is left out is said."""
    monkeypatch.setattr("headrace.ops.admin.commands._PAGE", 3)
    kept.commit(0, {b"%d" % number: KeyRow(b"1") for number in range(8)})
    kept.held = {0}
    with with_state(bare, kept):
        for limit, count in ((8, 8), (7, 7), (100, 8)):
            states(None, "", limit, partition=None, is_hex=False, as_json=True)(asked(bare))
            lines, errors = printed(capsys)
            found = [json.loads(line)["key"] for line in lines]
            assert found == [str(number) for number in range(count)]
            assert ("there are more" in errors) == (limit == 7)
            assert "1 partitions are not this process's" in errors
        states(None, "3", 9, partition=0, is_hex=False, as_json=False)(asked(bare))
        heads, row = (line.split() for line in printed(capsys)[0])
        assert heads == ["partition", "key", "state", "timers"]
        assert row == ["0", "3", "1"]


def test_a_command_without_a_channel_with_state_says_so(scene: Scene) -> None:
    """There is a channel, and it keeps none."""
    with pytest.raises(UsageError, match="no channel of the process keeps state by key"):
        states(None, "", 1, partition=None, is_hex=False, as_json=False)(asked(scene))


def test_the_table_of_partitions_says_how_far_one_is(
    bare: Scene, kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    """Progress is in the partition's row, as headrace status prints it."""
    kept.state.release(1)
    kept.restoring[1] = RestoreProgress(34, 100, 12.2)
    with with_state(bare, kept) as channel:
        eventually(lambda: len(channel.partitions()) == 2)
        printed(capsys)
        assert status(None, as_json=False, watch=None)(asked(bare)) == 0
    lines = [line for line in printed(capsys)[0] if "events-" in line]
    assert ["restoring 34 %, 12 s left" in line for line in lines] == [False, True]


def test_a_copy_answers_for_a_key_where_that_is_said(bare: Scene, kept: Kept) -> None:
    """With its lag, and of no offsets; without stale, and for other partitions, it does not."""
    kept.commit(1, {SECOND.encode(): KeyRow.of(b"7", {})})
    kept.held = {0}
    kept.copies.places[1] = StandbyProgress(80, 12)
    with with_state(bare, kept):
        found = bare.get(f"{STATE}/{SECOND}?stale=true").json()
        assert (found["key"], found["state"], found["partition"]) == (SECOND, 7, 1)
        assert found["standby"] == {"partition": 1, "position": 80, "lag": 12, "problem": None}
        assert (found["offset"], found["offsets"], found["restored"]) == (None, {}, False)
        assert problem(bare.get(f"{STATE}/{SECOND}"), 503)[0] == "not_owned"
        absent = next(each for each in "efghij" if partition_of(each.encode(), 2) == 1)
        _, message = problem(bare.get(f"{STATE}/{absent}?stale=true"), 404)
        assert message.endswith("it would be in partition 1, of which a copy is here")
        kept.copies.places.clear()
        assert problem(bare.get(f"{STATE}/{SECOND}?stale=true"), 503)[0] == "not_owned"


def test_the_command_shows_a_copy_where_that_is_said(
    bare: Scene, kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says how far the copy is behind, with a lag that is not known as well."""
    kept.commit(1, {SECOND.encode(): KeyRow.of(b"7", {})})
    kept.held = {0}
    get = partial(state_of_key, None, SECOND, partition=None, is_hex=False, as_json=False)
    with with_state(bare, kept):
        for lag in (12, None):
            kept.copies.places[1] = StandbyProgress(80, lag)
            assert get(stale=True)(asked(bare)) == 0
        with pytest.raises(AnswerError, match="no owner at this moment"):
            get()(asked(bare))
    copied = f"{SECOND} · partition 1 · a copy as of offset 80 of the changelog"
    expected = [f"{copied}, 12 offsets behind", "7", f"{copied}, unknown how far behind", "7"]
    assert printed(capsys)[0] == expected


def test_a_copy_is_not_asked_for_in_a_changelog(tmp_path: Path) -> None:
    """The command line is refused before the configuration is read."""
    config = tmp_path / "headrace.yaml"
    config.touch()
    options = ["--stale", "--changelog", "-c", str(config)]
    refused = CliRunner().invoke(state_app, ["get", "a", *options])
    assert refused.exit_code == 2
    assert "leave --changelog out" in " ".join(refused.output.replace("│", " ").split())


def test_members_that_lead_to_each_other_end_with_an_error(bare: Scene, kept: Kept) -> None:
    """After three of them a member says that nobody has the key now, in place of a fourth."""
    other = in_memory_channel(
        Recorder(), bare.controller.broker, zookeeper=bare.controller.zookeeper, member="other"
    )
    with with_state(bare, kept) as channel, running(other):
        eventually(lambda: len(other.partitions()) == 1 == len(channel.partitions()))
        (number,) = (each.partition for each in channel.partitions())
        kept.held = {number}
        _publish(bare, "https://other.example:9465")
        path = f"{STATE}/{SECOND if number == 0 else FIRST}"
        answer = bare.get(f"{path}?led=2")
        assert problem(answer, 307)[0] == "held_elsewhere"
        assert answer.headers["location"].endswith("led=3")
        name, message = problem(bare.get(f"{path}?led=3"), 503)
        assert name == "not_owned"
        assert message.startswith("3 members led to each other for key ")
