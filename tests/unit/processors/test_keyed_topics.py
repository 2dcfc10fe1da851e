"""A channel's state is never begun from nothing, whatever became of its topics."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.core.errors import RetryableError, StartError
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed import restore
from headrace.extensions.keyed.runtime import checkpoints
from headrace.extensions.keyed.runtime.state_topics import LOOKS
from headrace.extensions.keyed.store import StoredCommit
from headrace.kafka.errors import KafkaUnavailableError
from headrace.processors.contract import Request
from headrace.testing.broker import InMemoryCatalog
from tests.unit.processors.keyed_bench import CHANGELOG, INPUT, PARTITIONS, PATIENCE, KeyedBench

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.testing.broker import InMemoryBroker
    from tests.unit.processors.keyed_bench import KeyedDaemon

LOG = TopicPartition(CHANGELOG, 0)


@pytest.fixture
def bench(tmp_path: Path) -> KeyedBench:
    """A group's broker, with a folder for the store."""
    return KeyedBench(tmp_path)


def counted(bench: KeyedBench, facts: int = 3, *, of_before: bool = False) -> None:
    """Count facts of a key, and end; ``of_before``: by a version that marks no changelog."""
    with bench.daemon() as daemon:
        daemon.member.is_of_before = of_before
        held = daemon.assign(0)
        for _ in range(facts):
            daemon.send(held, b"a")
        daemon.processor.on_stream_termination(held)


def made_again(broker: InMemoryBroker) -> None:
    """Delete the changelog, and make one of the same name."""
    broker.delete_topic(CHANGELOG)
    broker.create_topic(CHANGELOG, PARTITIONS)


def deleted(broker: InMemoryBroker) -> None:
    """Delete the changelog: the next start makes it."""
    broker.delete_topic(CHANGELOG)


def cut(broker: InMemoryBroker) -> None:
    """Delete the first record, as DeleteRecords and a retention do."""
    broker.expire(LOG, 1)


def shortened(broker: InMemoryBroker) -> None:
    """Lose the last records with a leader that was behind."""
    broker.truncate(LOG, 1)


def grown_again(broker: InMemoryBroker) -> None:
    """Lose them, and have as many others there since then."""
    broker.truncate(LOG, 1)
    broker.produce(LOG, *[b"other"] * 2)


def emptied(broker: InMemoryBroker) -> None:
    """Lose all of it with a disk; the topic is the same."""
    broker.truncate(LOG, 0)


HARMED = {
    "another": (made_again, "is another topic than the one with its rows"),
    "deleted": (deleted, "is another topic than the one with its rows"),
    "cut": (cut, "begins at offset 1, and its rows began at 0"),
    "shortened": (shortened, "ends at offset 1, and rows up to 3 were committed"),
    "grown": (grown_again, "lost its end before offset 3"),
    "emptied": (emptied, "ends at offset 0, and rows up to 3 were committed"),
}


#: Without a store the offset says how far rows went at the checkpoint before it.
_WITHOUT_STORE = [(harm, False) for harm in HARMED if harm not in {"shortened", "grown"}]


@pytest.mark.parametrize(
    ("harm", "is_local"), [*((harm, True) for harm in HARMED), *_WITHOUT_STORE]
)
def test_a_changelog_without_rows_that_were_committed_has_the_partition_rest(
    bench: KeyedBench, harm: str, is_local: bool
) -> None:
    """No count begins at 0, the store stays, and one event has the reason."""
    counted(bench)
    harming, words = HARMED[harm]
    harming(bench.broker)
    if not is_local:
        bench.folder = bench.folder.with_name("elsewhere")
        words = words if harm != "emptied" else "is empty, and rows were committed to it"
    with bench.daemon() as daemon, capture_logs() as logs:
        held = daemon.assign(0, wait=False)
        assert words in daemon.stranded.wait_for(0)
        assert daemon.send(held, b"a").request is Request.REVERT
        other = daemon.assign(1, wait=False)
        assert wait_for(lambda: daemon.rests.resting == {0}, Deadline.after(PATIENCE))
        assert daemon.send(other, b"b").request is Request.ADVANCE
        kept = [row.state for _, row in daemon.store.rows(0)]
        assert kept == ([b"3"] if is_local else [])
        found = [each for each in logs if each["event"] == "state_at_risk"]
        assert [(each["partition"], each["reason"]) for each in found] == [
            (0, daemon.stranded.notes[0])
        ]
        assert not any(each["event"] == "local_state_dropped" for each in logs)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("shortened", "ends at offset 1, and rows up to 2 were committed"),
        ("grown", "lost its end before offset 2"),
        ("emptied", "ends at offset 0, and rows up to 2 were committed"),
    ],
)
def test_an_end_that_was_lost_is_found_without_a_store(
    bench: KeyedBench, harm: str, words: str
) -> None:
    """The commit after a checkpoint has the rows' end with its offset."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        for _ in range(2):
            daemon.send(held, b"a")
        checkpoint(daemon)
        daemon.send(held, b"a")
        daemon.processor.on_stream_termination(held)
    HARMED[harm][0](bench.broker)
    bench.folder = bench.folder.with_name("elsewhere")
    with bench.daemon() as daemon, capture_logs() as logs:
        held = daemon.assign(0, wait=False)
        assert words in daemon.stranded.wait_for(0)
        assert daemon.send(held, b"a").request is Request.REVERT
        assert [each["event"] for each in logs].count("state_at_risk") == 1


def test_rows_that_only_moved_by_compaction_are_not_missed_without_a_store(
    bench: KeyedBench,
) -> None:
    """Committed rows are found, for any number of rows after the last checkpoint."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        for _ in range(3):
            daemon.send(held, b"a")
            checkpoint(daemon)
        daemon.send(held, b"a")
        daemon.processor.on_stream_termination(held)
    bench.folder = bench.folder.with_name("elsewhere")
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        assert daemon.counted(0, b"a") == 5


@pytest.mark.parametrize("harm", ["another", "cut", "emptied"])
def test_an_offset_of_an_earlier_version_is_compared_with_the_local_store(
    bench: KeyedBench, harm: str
) -> None:
    """It says nothing of the changelog, and the store's position does."""
    counted(bench, of_before=True)
    HARMED[harm][0](bench.broker)
    with bench.daemon() as daemon:
        daemon.assign(0, wait=False)
        daemon.stranded.wait_for(0)


@pytest.mark.parametrize("is_local", [True, False], ids=["store", "no store"])
def test_an_offset_of_an_earlier_version_goes_on_and_says_where_the_state_is(
    bench: KeyedBench, is_local: bool
) -> None:
    """After an upgrade, here or elsewhere: the next commit has the changelog's id."""
    counted(bench, of_before=True)
    if not is_local:
        bench.folder = bench.folder.with_name("elsewhere")
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        assert daemon.counted(0, b"a") == 4
        (stored,) = bench.stored.values()
        assert stored.changelog is not None
        topic_id = bench.broker.catalog().describe([CHANGELOG], Deadline.after(1))[CHANGELOG]
        assert stored.changelog.topic_id == topic_id.topic_id
        assert (stored.changelog.start, stored.changelog.partitions) == (0, PARTITIONS)


def test_a_changelog_in_which_nothing_was_ever_stored_is_not_missed(bench: KeyedBench) -> None:
    """Commits without a row leave it empty: the partition goes on, with a store and without one."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.sink.commit_all([], [daemon.tick(held)])
        assert bench.stored
    bench.folder = bench.folder.with_name("elsewhere")
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        assert daemon.counted(0, b"a") == 1


@pytest.mark.parametrize("harm", ["another", "deleted"])
@pytest.mark.parametrize("look", ["commit", "checkpoint"])
def test_a_changelog_that_is_replaced_while_it_runs_has_all_rest(
    bench: KeyedBench, harm: str, look: str
) -> None:
    """At the next commit, which is not made, or where nothing comes at the next checkpoint."""
    with bench.daemon() as daemon, capture_logs() as logs:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        before = dict(bench.stored)
        HARMED[harm][0](bench.broker)
        looked: Callable[[], Any] = (
            (lambda: refused(daemon, held)) if look == "commit" else (lambda: checkpoint(daemon))
        )
        for _ in range(LOOKS):
            looked()
        assert "with all rows of the state" in daemon.stranded.wait_for(None)
        assert bench.stored == before
        assert len([each for each in logs if each["event"] == "state_at_risk"]) == 1
        # a partition that comes rests as well, and its rows stay
        daemon.processor.on_partition_lost(held)
        daemon.assign(0, wait=False)
        checkpoint(daemon)
        assert [row.state for _, row in daemon.store.rows(0)] == [b"1"]


def refused(daemon: KeyedDaemon, held: Any) -> None:
    """Deliver a fact whose commit is refused."""
    with pytest.raises(Exception, match=r"state|not found"):
        daemon.send(held, b"a")


def checkpoint(daemon: KeyedDaemon) -> None:
    """Run the processor's periodic checkpoint, as where nothing came since the one before."""
    opened = daemon.processor.opened.checkpoints
    opened.note(Deadline.after(PATIENCE))
    opened.look_at_quiet(inf, Deadline.after(PATIENCE))


#: How a changelog loses rows while a channel runs, and what is said of it where no fact comes.
LOST_WHILE_IT_RUNS = {
    "cut": "begins at offset 1, and its rows began at 0",
    "shortened": "ends at offset 1, and rows up to 3 were committed",
    "grown": "lost its end before offset 3",
    "emptied": "ends at offset 0, and rows up to 3 were committed",
}


@pytest.mark.parametrize("is_restarted", [False, True], ids=["first", "restarted"])
@pytest.mark.parametrize("harm", LOST_WHILE_IT_RUNS)
def test_rows_that_are_lost_while_it_is_quiet_have_their_partition_rest(
    bench: KeyedBench, harm: str, *, is_restarted: bool
) -> None:
    """The next checkpoint finds it, notes no position, and has the other partition go on."""
    if is_restarted:
        counted(bench)
    with bench.daemon() as daemon, capture_logs() as logs:
        held, other = daemon.assign(0), daemon.assign(1)
        for _ in range(0 if is_restarted else 3):
            daemon.send(held, b"a")
        checkpoint(daemon)
        before = daemon.store.position(0)
        HARMED[harm][0](bench.broker)
        for _ in range(2):
            checkpoint(daemon)
        assert LOST_WHILE_IT_RUNS[harm] in daemon.stranded.wait_for(0)
        assert daemon.store.position(0) == before
        found = [each["partition"] for each in logs if each["event"] == "state_at_risk"]
        assert found == [0]
        assert daemon.send(other, b"b").request is Request.ADVANCE


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("cut", "begins at offset 1"),
        ("shortened", "ends at offset 2, and rows up to 3 were committed"),
        ("grown", "lost its end before offset 3"),
    ],
)
def test_rows_that_are_lost_while_facts_come_have_their_partition_rest(
    bench: KeyedBench, harm: str, words: str
) -> None:
    """A commit to a changelog without its former rows is no position of the store."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        for _ in range(3):
            daemon.send(held, b"a")
        checkpoint(daemon)
        before = daemon.store.position(0)
        HARMED[harm][0](bench.broker)
        daemon.send(held, b"a")
        checkpoint(daemon)
        assert words in daemon.stranded.wait_for(0)
        assert daemon.store.position(0) == before


def test_quiet_changelogs_are_looked_at_in_turns(
    bench: KeyedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each changelog is found, however few are looked at with one checkpoint."""
    monkeypatch.setattr(checkpoints, "QUIET_LOOKS", 1)
    with bench.daemon() as daemon:
        for number in (0, 1):
            held = daemon.assign(number)
            for _ in range(2):
                daemon.send(held, b"a")
        checkpoint(daemon)
        for number in (0, 1):
            bench.broker.expire(TopicPartition(CHANGELOG, number), 1)
        for _ in range(2):
            checkpoint(daemon)
        daemon.stranded.wait_for(0, 1)


def test_an_end_that_cannot_be_asked_for_leaves_a_quiet_partition_alone(
    bench: KeyedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a leader is looked at again; the event says that it could not be."""
    with bench.daemon() as daemon, capture_logs() as logs:
        held = daemon.assign(0)
        for _ in range(2):
            daemon.send(held, b"a")
        checkpoint(daemon)
        with monkeypatch.context() as patch:
            patch.setattr(InMemoryCatalog, "watermarks", _have_no_leader)
            checkpoint(daemon)
        assert [each["event"] for each in logs].count("state_not_noted") == 1
        cut(bench.broker)
        checkpoint(daemon)
        daemon.stranded.wait_for(0)


def _have_no_leader(*_: object) -> tuple[int, int]:
    raise KafkaUnavailableError("no leader")


def test_a_policy_that_would_delete_rows_has_all_rest_until_it_is_set_back(
    bench: KeyedBench,
) -> None:
    """Before the brokers delete anything; nothing else is to be done than to set it back."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        bench.settings["cleanup.policy"] = "delete"
        checkpoint(daemon)
        assert "cleanup.policy=delete" in daemon.stranded.wait_for(None)
        bench.settings.clear()
        checkpoint(daemon)
        daemon.stranded.wait_for()
        daemon.send(held, b"a")
        assert daemon.counted(0, b"a") == 2


def test_the_store_says_of_which_commit_its_rows_are(bench: KeyedBench) -> None:
    """With each commit, after a restore, and no longer once rows of others come to it."""
    with bench.daemon() as daemon:
        held = daemon.assign(0)
        assert daemon.store.commit_of(0) is None
        for number in (1, 2):
            daemon.send(held, b"a")
            assert daemon.store.commit_of(0) == StoredCommit(number, number)
    bench.written_by_another(0, b"a", b"3")
    with bench.daemon() as daemon:
        daemon.assign(0)
        assert daemon.store.commit_of(0) == StoredCommit(3, 3)


# --- more partitions -----------------------------------------------------------------------------


@pytest.mark.parametrize("look", ["commit", "checkpoint"])
def test_an_input_with_more_partitions_has_all_rest_with_one_reason(
    bench: KeyedBench, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the next commit on: no record that came after it is committed, and it is said once."""
    monkeypatch.setattr(restore, "_BACKOFF", 0.01)
    with bench.daemon() as daemon, capture_logs() as logs:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        bench.broker.create_topic(INPUT, PARTITIONS + 1)
        if look == "commit":
            with pytest.raises(RetryableError, match="has 3 partitions"):
                daemon.send(held, b"a")
        else:
            checkpoint(daemon)
        reason = daemon.stranded.wait_for(None)
        assert "headrace state repartition" in reason
        daemon.assign(PARTITIONS, wait=False)
        for _ in range(3):
            checkpoint(daemon)
        assert [each["reason"] for each in logs if each["event"] == "state_at_risk"] == [reason]
        assert len([each for each in logs if each["event"] == "restore_failed"]) <= 1
        assert [value for _, value in daemon.member.outputs] == [b"1"]
    with pytest.raises(StartError, match="headrace state repartition"), bench.daemon():
        pass
    # a changelog that was given as many does not move a key
    bench.broker.create_topic(CHANGELOG, PARTITIONS + 1)
    is_refused = pytest.raises(StartError, match=r"has 3 partitions, and the state in .* is for 2")
    with is_refused, bench.daemon():
        pass


@pytest.mark.parametrize("key", ["partition", "constant"])
def test_keys_that_are_those_of_partitions_are_split_by_no_number_of_them(
    bench: KeyedBench, key: str
) -> None:
    """The changelog gets as many, while it runs and at a start, and all go on."""
    with bench.daemon(key=key) as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"a")
        bench.broker.create_topic(INPUT, PARTITIONS + 1)
        other = daemon.assign(PARTITIONS, wait=False)
        checkpoint(daemon)
        daemon.rests.wait_for_none()
        daemon.send(other, b"c")
        daemon.send(held, b"a")
        assert (daemon.counted(0, b"a"), daemon.counted(2, b"c")) == (2, 1)
    bench.broker.create_topic(INPUT, PARTITIONS + 2)
    with bench.daemon(key=key) as daemon:
        daemon.send(daemon.assign(PARTITIONS + 1), b"d")


# --- another key ---------------------------------------------------------------------------------


def test_a_state_of_another_key_is_not_added_to(bench: KeyedBench) -> None:
    """A start with the same group is refused, and names both; one that does not say it goes on."""
    with bench.daemon(key="partition") as daemon:
        daemon.send(daemon.assign(0), b"a")
        (stored,) = bench.stored.values()
        assert stored.changelog is not None
        assert stored.changelog.key == "partition"
    words = "is of key: partition, and the channel has key: record now"
    with pytest.raises(StartError, match=words), bench.daemon():
        pass
    identity, stored = next(iter(bench.stored.items()))
    assert stored.changelog is not None
    bench.stored[identity] = replace(stored, changelog=replace(stored.changelog, key=None))
    with bench.daemon() as daemon:
        daemon.send(daemon.assign(0), b"a")
    (stored,) = bench.stored.values()
    assert stored.changelog is not None
    assert stored.changelog.key == "record"
