from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

import pytest

from headrace.config import DynamicCoordinatorConfig, StaticCoordinatorConfig
from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from tests.integration.channel.rig import WAIT, Group, Notes, channel_of, eventually
from tests.integration.seen import metric
from tests.sessions import expire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.core.records import Batch
    from tests.integration.seen import Log


def test_two_members_share_evenly_and_a_clean_leave_duplicates_nothing(
    make_group: Callable[..., Group],
) -> None:
    """Each gets half, the one that stays gets the rest, and every record came once."""
    group, numbers = make_group(4), range(4)
    first, second = Notes(), Notes()
    group.produce(300, *numbers)
    with group.running(first, "a"):
        first.wait_values(1200)
        with group.running(second, "b"):
            second.wait(lambda: len(second.assigned) == 2)
            first.wait(lambda: len(first.assigned) == 2)
            assert not first.assigned & second.assigned
            group.produce(300, *numbers, start=300)
            eventually(lambda: (first.values + second.values).total() == 2400)
            assert second.values.total() == 600
        first.wait(lambda: len(first.assigned) == 4)
        group.produce(300, *numbers, start=600)
        eventually(lambda: group.offsets(*numbers) == [900] * 4)
    both = first.values + second.values
    assert len(both) == 3600
    assert set(both.values()) == {1}
    for calls in (*first.callbacks.values(), *second.callbacks.values()):
        assert "lost" not in calls


def test_a_survivor_takes_over_from_a_killed_process(
    make_group: Callable[..., Group], log: Log
) -> None:
    """After a SIGKILL the other goes on with the next epoch from what was committed."""
    group, numbers = make_group(2, session_timeout=4), range(2)
    group.produce(50, *numbers)
    with member(group, "victim", max_in_flight=1) as (process, events):
        wanted = {0: 50, 1: 50}
        for what, number, epoch, offset in events:
            assert epoch == 1
            if what == "stored" and wanted.get(number) == offset:
                del wanted[number]
            if not wanted:
                break
        assert not wanted
        process.kill()
        process.wait(WAIT)
    group.produce(50, *numbers, start=50)
    notes = Notes()
    with group.running(notes, "survivor"):
        eventually(lambda: group.stored(*numbers) == [StoredOffset(100, 2)] * 2)
    for number in numbers:
        where = {"topic": group.topic, "partition": number}
        log.expect("partition_claimed", epoch=2, clean_end=False, **where)
        assert notes.records[group.partition(number)] == list(range(50, 100))
        assert notes.epochs[group.partition(number)] == [2]


def test_a_wiped_zookeeper_does_not_lower_the_epoch(group: Group, log: Log) -> None:
    """A claim without an epoch node rises above the epoch in the group's offset."""
    group.produce(5)
    for _ in range(2):
        notes = Notes()
        with group.running(notes):
            notes.wait(lambda notes=notes: bool(notes.assigned))  # type: ignore[misc]
            eventually(lambda: group.offsets() == [5])
    assert group.stored() == [StoredOffset(5, 2)]
    with group.zookeeper() as session:
        session.delete(group.paths.epoch(group.partition()))
    group.produce(5, start=5)
    notes = Notes()
    with group.running(notes):
        eventually(lambda: group.stored() == [StoredOffset(10, 3)])
        with group.zookeeper() as session:
            node = json.loads(session.get(group.paths.epoch(group.partition())).data)
        assert node["epoch"] == 3
    log.expect("epoch_raised", partition=str(group.partition()), old=1, new=3)
    assert notes.epochs[group.partition()] == [3]
    assert notes.records[group.partition()] == list(range(5, 10))


def test_a_lost_session_costs_the_claims_and_no_record(group: Group, log: Log) -> None:
    """The processor hears of the loss, the member claims anew and goes on where it committed."""
    group.produce(100)
    notes = Notes()
    with group.running(notes) as controller:
        eventually(lambda: group.offsets() == [100])
        expire(controller.session)
        notes.wait(lambda: "lost" in notes.callbacks[group.partition()])
        group.produce(100, start=100)
        eventually(lambda: group.stored() == [StoredOffset(200, 2)])
    log.expect("claim_lost", channel="main", epoch=1, reason="session_lost")
    assert len(log.of("member_joined")) == 2
    calls = [c for c in notes.callbacks[group.partition()] if c in {"assigned", "lost"}]
    assert calls == ["assigned", "lost", "assigned"]
    assert notes.epochs[group.partition()] == [1, 2]
    assert notes.records[group.partition()] == list(range(200))


def test_a_stop_ends_in_time_and_names_a_hanging_worker(make_group: Callable[..., Group]) -> None:
    """A processor that does not return costs its own partition and no other, nor the deadline."""
    group = make_group(2)
    group.produce(10, 0, 1)
    release = Event()

    def answer(batch: Batch) -> BatchResponse:
        if batch.partition.partition == 0:
            release.wait(WAIT)
        return BatchResponse.advance()

    notes = Notes(answer)
    controller = group.controller(notes)
    controller.start(Deadline.after(WAIT))
    eventually(lambda: group.offsets(1) == [10] and bool(notes.records[group.partition(0)]))
    deadline, late = Deadline.after(4), Deadline.after(8)
    report = controller.stop(deadline)
    assert not late.expired
    left = "; ".join(report.left)
    assert f"{group.partition(0)}: claim" in left
    assert "worker" in left
    for finished in (str(group.partition(1)), "fetcher", "committer", "watchdog", "session"):
        assert finished not in left
    assert group.nodes() == {group.paths.ids: [], group.paths.owners(group.topic): []}
    assert group.offsets(0, 1) == [0, 10]
    release.set()
    assert channel_of(controller).state.value == "stopped"


def test_a_partition_whose_worker_hangs_moves_to_another_member(
    make_group: Callable[..., Group], log: Log
) -> None:
    """The claim is given up without a commit, another member has it, and the rest stays put."""
    group = make_group(2)
    release = Event()

    def hang(_: Batch) -> BatchResponse:
        release.wait(WAIT)
        return BatchResponse.advance()

    stuck, healthy = Notes(hang), Notes()
    with group.running(stuck, "stuck", batch_timeout="1s") as controller:
        stuck.wait(lambda: len(stuck.assigned) == 2)
        with group.running(healthy, "healthy"):
            stuck.wait(lambda: len(stuck.assigned) == 1)
            healthy.wait(lambda: len(healthy.assigned) == 1)
            (bad,), (good,) = stuck.assigned, healthy.assigned
            group.produce(10, 0, 1)
            healthy.wait(lambda: len(healthy.records[bad]) == 10)
            eventually(lambda: group.offsets(0, 1) == [10, 10])
            where = {"topic": bad.topic, "partition": bad.partition}
            log.expect("worker_abandoned", channel="main", **where)
            log.expect("claim_released", epoch=1, clean_end=False, **where)
            assert metric(controller, "abandoned_workers_total") == 1
            release.set()
            stuck.wait(lambda: "lost" in stuck.callbacks[bad])
    assert (stuck.epochs[good], healthy.epochs[good]) == ([1], [2])
    assert (stuck.epochs[bad], healthy.epochs[bad]) == ([1], [2])


def test_a_coordinator_is_replaced_while_the_channel_runs(make_group: Callable[..., Group]) -> None:
    """Only what has to move moves, without a repeat, and lists of other topics are refused."""
    group, numbers = make_group(4), range(4)
    first, second = Notes(), Notes()
    with group.running(first, "a") as a, group.running(second, "b"):
        first.wait(lambda: len(first.assigned) == 2)
        second.wait(lambda: len(second.assigned) == 2)
        kept = {p.partition for p in second.assigned}
        group.produce(100, *numbers)
        eventually(lambda: group.offsets(*numbers) == [100] * 4)
        with pytest.raises(ConfigError, match=r"channels\.main\.coordinator\.partitions\.other"):
            channel_of(a).replace_coordinator(StaticCoordinatorConfig(partitions={"other": [0]}))
        lists = {group.topic: sorted({0, 1, 2, 3} - kept)[:1]}
        channel_of(a).replace_coordinator(StaticCoordinatorConfig(partitions=lists))
        second.wait(lambda: len(second.assigned) == 3)
        assert [p.partition for p in first.assigned] == lists[group.topic]
        channel_of(a).replace_coordinator(DynamicCoordinatorConfig(weight=3))
        first.wait(lambda: len(first.assigned) == 3)
        group.produce(100, *numbers, start=100)
        eventually(lambda: group.offsets(*numbers) == [200] * 4)
    both = first.values + second.values
    assert len(both) == 800
    assert set(both.values()) == {1}
    assert "lost" not in {call for calls in first.callbacks.values() for call in calls}


@contextmanager
def member(
    group: Group, name: str, *options: str, **settings: object
) -> Iterator[tuple[subprocess.Popen[str], Iterator[tuple[str, int, int, int]]]]:
    """Run a member in a process of its own; gives the process and what it prints.

    Its log goes to ``<name>.log`` in the group's folder.
    """
    file = group.file(name, group.document(name, **settings))
    with (
        (group.directory / f"{name}.log").open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.integration.channel.member", str(file), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as started,
    ):
        assert started.stdout is not None
        try:
            yield started, (tuple(json.loads(line)) for line in started.stdout)
        finally:
            started.kill()
