"""Changing the offsets of a sink with those of the group."""

from __future__ import annotations

import json
from threading import Semaphore

import pytest

from headrace.core.errors import HeadraceError
from headrace.core.positions import Replay
from headrace.ops.offsets.hold import Hold
from tests.unit.channel.in_memory import P0
from tests.unit.channel.recorder import PATIENCE
from tests.unit.ops.offsets.stage import MovableOffsets, Stage


def test_the_sink_s_offsets_move_with_the_group_s(stage: Stage) -> None:
    """Those it has, in one go, with what was done in its history."""
    stage.sink_offsets = MovableOffsets({"0": 10})
    stage.commit(P0, 9, 1)
    plan = stage.move(2, 3)
    assert [each.found.next for each in plan] == [10, None]
    assert stage.sink_offsets.offsets == {"0": 2}
    assert [json.loads(note) for note in stage.sink_offsets.notes] == [
        {"operation": "reset", "moved": {"events-0": [10, 2]}}
    ]
    assert stage.committed() == [(2, 2), (3, 1)]


def test_output_goes_with_the_move_where_it_is_replaced(stage: Stage) -> None:
    """Also of a partition whose offset stays; one that the sink does not have is not touched."""
    stage.sink_offsets = MovableOffsets({"0": 10})
    stage.move(2, 3, replay=Replay.REPLACE)
    stage.move(2, 4, replay=Replay.REPLACE)
    assert stage.sink_offsets.replaced == ["events-0", "events-0"]
    assert [json.loads(note) for note in stage.sink_offsets.notes] == [
        {"operation": "reset", "moved": {"events-0": [10, 2]}, "replay": "replace"},
        {"operation": "reset", "moved": {"events-0": [2, 2]}},
    ]
    assert stage.committed() == [(2, 2), (4, 2)]


def test_output_that_is_kept_is_told_in_the_sink_s_history(stage: Stage) -> None:
    """The operator's choice is noted with the move."""
    stage.sink_offsets = MovableOffsets({"0": 10})
    stage.move(2, 3, replay=Replay.APPEND)
    assert stage.sink_offsets.replaced == []
    assert json.loads(stage.sink_offsets.notes[0])["replay"] == "append"


def test_the_hold_lasts_while_a_sink_looks_through_its_table(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan and a move that take many sessions' time are carried out under the same claims."""
    monkeypatch.setattr("headrace.ops.offsets.plan._KEEP_S", 0.01)
    prolonged = Semaphore(0)
    real = Hold._prolong

    def prolong(hold: Hold) -> None:
        real(hold)
        prolonged.release()

    monkeypatch.setattr(Hold, "_prolong", prolong)

    def take_long() -> None:
        for _ in range(15):
            while prolonged.acquire(blocking=False):
                pass
            stage.clock.advance(0.2 * stage.session.session_timeout)
            assert prolonged.acquire(timeout=PATIENCE)

    stage.meanwhile = take_long
    stage.sink_offsets = MovableOffsets({"0": 10}, before=take_long)
    stage.move(2, 3, replay=Replay.REPLACE)
    assert stage.committed() == [(2, 1), (3, 1)]


def test_a_write_to_the_sink_stops_the_change(stage: Stage) -> None:
    """Sink and group stay as they are."""
    sink_offsets = stage.sink_offsets = MovableOffsets({"0": 10, "1": 10})
    sink_offsets.before = lambda: sink_offsets.offsets.update({"1": 12})
    with pytest.raises(HeadraceError, match="nothing was changed: another process writes"):
        stage.move(0, 0)
    assert sink_offsets.offsets == {"0": 10, "1": 12}
    assert stage.committed() == [None, None]


def test_a_sink_that_fails_stops_the_change(stage: Stage) -> None:
    """The error says what it was, and that the group is as before."""

    def fail() -> None:
        raise OSError("disk full")

    stage.sink_offsets = MovableOffsets({"0": 10}, before=fail)
    with pytest.raises(HeadraceError, match=r"disk full.*group's were not touched"):
        stage.move(0, 0)
    assert stage.committed() == [None, None]


def test_a_commit_that_fails_after_the_sink_s_says_so(stage: Stage) -> None:
    """The sink's offsets count; the same command again does the rest."""
    sink_offsets = stage.sink_offsets = MovableOffsets({"0": 10})
    store = stage.broker.store("group")
    store.refuse = "not authorised"
    stage.store = store
    with pytest.raises(HeadraceError, match=r"events-0: not authorised.*sink's offsets were moved"):
        stage.move(0, 0)
    assert sink_offsets.offsets == {"0": 0}
    assert not stage.epoch(P0).clean_end
    store.refuse = None
    stage.move(0, 0)
    assert stage.committed() == [(0, 2), (0, 2)]


def test_a_hold_lost_behind_the_sink_s_move_is_told_with_it(stage: Stage) -> None:
    """The group's offsets are not committed without a hold."""
    sink_offsets = stage.sink_offsets = MovableOffsets({"0": 10})
    sink_offsets.before = lambda: stage.clock.advance(60)
    with pytest.raises(HeadraceError, match=r"sink's offsets were moved.*hold on the group"):
        stage.move(0, 0)
    assert stage.committed() == [None, None]
