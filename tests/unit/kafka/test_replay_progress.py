"""How replays of dead letters remember what they did."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kafka.dead_letters import ReplayProgress


@given(
    st.sets(st.integers(0, 300)),
    st.lists(st.sets(st.integers(0, 300), max_size=40), max_size=6),
)
def test_progress_has_what_was_replayed_and_nothing_else(
    letters: set[int], runs: list[set[int]]
) -> None:
    """Whatever is replayed in whichever order, each letter is known as replayed or as not."""
    progress, done = ReplayProgress(), set[int]()
    for run in runs:
        chosen = run & letters
        done |= chosen
        progress = progress.after(chosen, letters)
        stored = ReplayProgress.of(progress.offset, progress.metadata("id"), "id")
        assert stored == progress
        assert {each for each in letters if each in progress} == done


def test_progress_in_a_row_takes_no_room() -> None:
    """A hundred thousand letters behind one that is left take less than the brokers store."""
    letters = range(100_000)
    progress = ReplayProgress().after(range(1, 100_000), letters)
    assert progress.offset == 0
    assert len(progress.metadata("id")) < 4096
    assert progress.after([0], letters) == ReplayProgress(100_000)


def test_progress_of_a_former_topic_is_none() -> None:
    """The topic was created again: its letters are others."""
    stored = ReplayProgress(5, frozenset({7})).metadata("former")
    assert ReplayProgress.of(5, stored, "id") == ReplayProgress()


@pytest.mark.parametrize("metadata", ["", None, "[]", "x", json.dumps({"version": 2})])
def test_offsets_of_another_program_are_no_progress(metadata: str | None) -> None:
    """They are refused, as what they mean is not known."""
    with pytest.raises(ValueError):  # noqa: PT011 - its text is the metadata
        ReplayProgress.of(5, metadata, "id")
