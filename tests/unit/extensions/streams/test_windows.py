"""Declarations of windows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.extensions.streams.windows import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    hopping,
    join_windows,
    session,
    sliding,
    span_ms,
    tumbling,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_spans_are_milliseconds_whichever_way_they_are_written() -> None:
    """Text and timedelta make the same windows."""
    assert tumbling("5m", grace="30s") == TimeWindows(300_000, 300_000, 30_000)
    assert tumbling(timedelta(minutes=5), grace=timedelta(seconds=30)) == tumbling(
        "300s", grace="0.5m"
    )
    assert hopping("5m", "1m") == TimeWindows(300_000, 60_000, 0)
    assert sliding("10s", grace="1s") == SlidingWindows(10_000, 1000)
    assert session("30m", grace="5m") == SessionWindows(1_800_000, 300_000)
    assert join_windows(before="10s", after="1s", grace="250ms") == JoinWindows(10_000, 1000, 250)


@given(st.integers(0, 10**11))
def test_a_span_of_whole_milliseconds_is_exact(number: int) -> None:
    """Text in milliseconds, in seconds and a timedelta say the same number."""
    for span in (f"{number}ms", f"{number / 1000:.3f}s", timedelta(milliseconds=number)):
        assert span_ms(span, "size") == number


@given(st.integers(1, 60), st.integers(1, 60))
def test_panes_divide_size_and_every(size: int, every: int) -> None:
    """A pane is the longest that no window begins or ends in."""
    if every > size:
        return
    windows = TimeWindows(size, every, 0)
    ends = {edge for start in range(0, 3600, every) for edge in (start, start + size)}
    assert all(edge % windows.pane == 0 for edge in ends)
    assert windows.pane * windows.panes == size
    longer = range(windows.pane + 1, size + 1)
    assert not any(all(edge % pane == 0 for edge in ends) for pane in longer)
    assert windows.tumbling == (windows.panes == 1)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: tumbling("five"), ValueError, "size is 'five', which is no duration"),
        (lambda: tumbling("0s"), ValueError, "size is 0s: it has to be at least 1 ms"),
        (lambda: tumbling("1s", grace=timedelta(-1)), ValueError, "grace is -1 day"),
        (lambda: tumbling("1.5ms"), ValueError, "size is 1.5ms, which is no whole number"),
        (lambda: tumbling(timedelta(microseconds=1)), ValueError, "no whole number"),
        (lambda: session("9999999d"), ValueError, "at most 10,000 years"),
        (lambda: session("0s"), ValueError, "gap is 0s"),
        (lambda: hopping("1m", "5m"), ValueError, "would be in none"),
        (lambda: hopping("1d", "999999ms"), ValueError, "3,200,000 panes of 27 ms"),
    ],
)
def test_spans_that_cannot_be_used_are_refused_by_name(
    make: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    """The error names the span, its value and what is wrong."""
    with pytest.raises(kind, match=text):
        make()


def test_a_span_of_another_type_is_refused() -> None:
    """A bare number has no unit."""
    with pytest.raises(TypeError, match="every is 5, a int: give a timedelta"):
        hopping("1m", 5)  # type: ignore[arg-type]
