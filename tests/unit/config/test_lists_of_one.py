"""Lists of one text, which the text alone stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.extensions.delta.section import DeltaSinkConfig
from tests.unit.config.support import CHANNELS, loaded, refused

if TYPE_CHECKING:
    from pathlib import Path

CHANNEL = """
channels:
  flights:
    topics: %s
    group: statistics
    processor: {type: spark, reducer: "reducers:reduce"}
    sink: {type: delta, path: /t, partition_by: %s}
"""


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("flights", ("flights",)),
        ("[flights, more]", ("flights", "more")),
        ("'^flights[.](a|b),?'", ("^flights[.](a|b),?",)),
        ("${TOPIC}", ("flights",)),
    ],
)
def test_a_topic_by_itself_is_a_list_of_it(
    tmp_path: Path, text: str, topics: tuple[str, ...]
) -> None:
    """A name, a pattern with its commas, what a variable has."""
    channel = loaded(tmp_path, CHANNEL % (text, "day"), {"TOPIC": "flights"}).channels["flights"]
    assert channel.topics == topics
    assert isinstance(channel.sink, DeltaSinkConfig)
    assert channel.sink.partition_by == ("day",)


def test_a_folder_by_itself_is_a_list_of_it(tmp_path: Path) -> None:
    """A single python_path is a list of one, relative to the file's folder."""
    assert loaded(tmp_path, f"python_path: src\n{CHANNELS}").python_path == (tmp_path / "src",)


def test_a_topic_that_is_none_is_refused_as_in_a_list(tmp_path: Path) -> None:
    """With its place, and what a name may be."""
    (problem,) = refused(tmp_path, CHANNEL % ("fli ghts", "day"))
    assert "topics" in problem
    assert "'fli ghts' is not a topic name" in problem
