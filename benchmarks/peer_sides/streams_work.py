"""What topologies do to the records of a round: they count, by key, window or word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.streams import (
    Field,
    Grouped,
    Row,
    Topology,
    count,
    hopping,
    key,
    last,
    session,
    tumbling,
    window_start,
)

if TYPE_CHECKING:
    from headrace.extensions.streams.windows import Windows

_WINDOWS: dict[str, Windows] = {
    "tumbling": tumbling("1m", grace="30s"),
    "hopping": hopping("5m", every="1m", grace="30s"),
    "session": session("30s", grace="30s"),
}


class Visit(Row):
    """The value of a record, of which nothing is read."""

    place: Field[str | None]


class Other(Row):
    """The value of a record of the other topic, of which nothing is read."""

    place: Field[str | None]


class Line(Row):
    """A line of text, of which other fields are not read."""

    text: Field[str]


class Word(Row):
    """A word of a line."""

    word: Field[str]


class Count(Row):
    """A count of a key."""

    n: Field[int]


class WindowCount(Row):
    """A count of a key in a window, which begins at so many milliseconds."""

    begin: Field[int]
    n: Field[int]


class Note(Row):
    """A text of a key."""

    text: Field[str]


class LastNote(Row):
    """How many texts a key has in a window, and the last one."""

    n: Field[int]
    text: Field[str | None]


def keep_texts(topic: str, output: str) -> Topology:
    """Return a topology that keeps a text for each key and minute of an hour, and tells counts."""
    app = Topology()
    windows = app.stream(topic, Note).group_by(key, name="texts").window(tumbling("1m", grace="1h"))
    found = windows.agg(LastNote, n=count(), text=last(Note.text)).updates()
    found.select(Count, n=LastNote.n).to(output)
    return app


def topology(kind: str, topic: str, output: str, other: str = "") -> Topology:
    """Return the topology of a kind; a join reads the ``other`` topic, too."""
    app = Topology()
    if kind == "join":
        left, right = app.stream(topic, Visit), app.stream(other, Other)
        left.join(right, Count, within="10s", grace="30s", name="pairs", n=1).to(output)
    elif kind == "wordcount":
        words = app.stream(topic, Line).explode(Word, word=Line.text.split(" "))
        _count(words.group_by(Word.word, name="words"), output)
    else:
        visits = app.stream(topic, Visit).group_by(key, name="visits")
        if kind == "count":
            _count(visits, output)
        else:
            windows = visits.window(_WINDOWS[kind])
            windows.agg(WindowCount, begin=window_start, n=count()).updates().to(output)
    return app


def _count(groups: Grouped[Visit] | Grouped[Word], output: str) -> None:
    groups.agg(Count, n=count()).updates().to(output)
