"""How replays of dead letters remember what they did."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kafka.dead_letters import GroupProgress, ReplayProgress


@given(
    st.sets(st.integers(0, 300)),
    st.lists(st.sets(st.integers(0, 300), max_size=40), max_size=6),
)
def test_progress_has_the_replayed_letters_alone(letters: set[int], runs: list[set[int]]) -> None:
    """Each letter is known as replayed or not, for any order of replays."""
    progress, done = ReplayProgress(), set[int]()
    for run in runs:
        chosen, pending = run & letters, letters - done
        done |= chosen
        progress = progress.after({"g": chosen}, {"g": pending})
        assert ReplayProgress.of(progress.metadata("id"), "id") == progress
        assert {each for each in letters if each in progress.of_group("g")} == done
        assert progress.offset <= min(letters - done, default=301)


def test_progress_in_a_row_takes_no_room() -> None:
    """A hundred thousand letters behind one that is left take less than the brokers store."""
    letters = range(100_000)
    progress = GroupProgress().after(range(1, 100_000), letters)
    assert progress == GroupProgress(100_000, frozenset({0}))
    assert len(ReplayProgress({"g": progress}).metadata("id")) < 4096
    assert progress.after([0], letters) == GroupProgress(100_000)


def test_letters_of_no_replay_need_no_room() -> None:
    """The letters are fifty thousand of two groups in random order, a tenth of them none."""
    chance = random.Random(1)
    letters: dict[str, list[int]] = {"a": [], "b": [], "": []}
    for offset in range(50_000):
        name = chance.choice(["a", "b"]) if offset % 10 else ""
        letters[name].append(offset)
    progress = ReplayProgress()
    for start in range(0, len(letters["a"]), 500):
        some = letters["a"][start : start + 500]
        progress = progress.after({"a": some}, letters)
        assert len(progress.metadata("id")) < 200
    assert progress.of_group("a") == GroupProgress(letters["a"][-1] + 1)
    assert not any(each in progress.of_group("b") for each in letters["b"])
    progress = progress.after({"b": letters["b"]}, letters)
    assert len(progress.metadata("id")) < 200


def test_progress_of_a_former_topic_is_none() -> None:
    """The topic was created again: its letters are others."""
    stored = ReplayProgress({"g": GroupProgress(8, frozenset({7}))}).metadata("former")
    assert ReplayProgress.of(stored, "id") == ReplayProgress()


@pytest.mark.parametrize("metadata", ["", None, "[]", "x", json.dumps({"version": 1})])
def test_offsets_of_another_program_are_no_progress(metadata: str | None) -> None:
    """They are refused, as what they mean is not known."""
    with pytest.raises(ValueError):  # noqa: PT011 - its text is the metadata
        ReplayProgress.of(metadata, "id")
