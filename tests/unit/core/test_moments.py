from __future__ import annotations

import pytest

from headrace.core.positions import format_moment, parse_moment


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01", 0),
        ("2013-01-01", 1_356_998_400_000),
        ("2013-01-01T05:00:00Z", 1_357_016_400_000),
        ("2013-01-01T05:00:00", 1_357_016_400_000),
        ("2013-01-01 07:00:00.250+02:00", 1_357_016_400_250),
    ],
)
def test_a_moment_is_milliseconds_since_the_epoch(text: str, milliseconds: int) -> None:
    """ISO 8601 with and without an offset; without one it is UTC."""
    assert parse_moment(text) == milliseconds


@pytest.mark.parametrize("text", ["", "yesterday", "1356998400", "1969-12-31", "2013-13-01"])
def test_an_invalid_time_is_refused_with_an_example(text: str) -> None:
    """The message quotes the text and shows how to write a time."""
    with pytest.raises(ValueError, match="2013-01-01T05:00:00Z") as refused:
        parse_moment(text)
    assert repr(text) in str(refused.value)


def test_a_moment_is_shown_in_utc() -> None:
    """Milliseconds appear only where there are any."""
    assert format_moment(1_357_016_400_000) == "2013-01-01T05:00:00Z"
    assert format_moment(1_357_016_400_250) == "2013-01-01T05:00:00.250Z"
