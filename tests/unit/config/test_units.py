from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from headrace.config.types.units import (
    MAX_BYTES,
    MAX_SECONDS,
    Duration,
    Size,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("250ms", 0.25),
        ("0.5ms", 0.0005),
        ("10s", 10.0),
        ("1.5s", 1.5),
        ("5 m", 300.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
    ],
)
def test_durations_are_read_in_seconds(text: str, seconds: float) -> None:
    """A number with a unit is read as that many seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "10sec", "10S", "-1s", "1h30m", ".5s", "5.s", "1e3s"])
def test_a_text_without_a_known_unit_is_no_duration(text: str) -> None:
    """Text without a known unit, or with anything else, is no duration."""
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("1B", 1),
        ("500KB", 500_000),
        ("16MiB", 16 * 1024**2),
        ("1.5GiB", 3 * 512 * 1024**2),
        ("2 TB", 2 * 1000**4),
        ("1TiB", 1024**4),
    ],
)
def test_sizes_are_read_in_bytes(text: str, size: int) -> None:
    """A number with or without a unit is read as that many bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "16mb", "16M", "-1", "0.5B", "1,024", "MiB"])
def test_a_text_with_an_unknown_unit_is_no_size(text: str) -> None:
    """A part of a byte is no size either."""
    assert parse_size(text) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.25, "250ms"), (0.0005, "0.5ms"), (90.0, "90s"), (3600.0, "1h")],
)
def test_durations_are_written_in_the_largest_fitting_unit(seconds: float, text: str) -> None:
    """A duration is written as a whole count of the largest unit that gives one."""
    assert format_duration(seconds) == text


@given(st.floats(min_value=1e-6, max_value=MAX_SECONDS) | st.just(0.0))
def test_durations_survive_writing_and_reading(seconds: float) -> None:
    """A duration is read as it was written."""
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=MAX_BYTES))
def test_sizes_survive_writing_and_reading(size: int) -> None:
    """A size is read as it was written."""
    assert parse_size(format_size(size)) == size


def _read(annotation: Any, value: object) -> object:
    return TypeAdapter(annotation).validate_python(value)


@pytest.mark.parametrize("value", [60, 60.5, "60"])
def test_a_bare_number_is_no_duration(value: object) -> None:
    """A number without a unit is refused in words that ask for one."""
    with pytest.raises(ValidationError, match="has no unit; put ms, s, m, h or d after"):
        _read(Annotated[float, Duration()], value)


@pytest.mark.parametrize("value", [0, "0", "0ms"])
def test_zero_needs_no_unit(value: object) -> None:
    """Zero is the same in every unit."""
    assert _read(Annotated[float, Duration()], value) == 0.0


@pytest.mark.parametrize("value", ["0.9s", "61s", "10001d", True, None, [], {}, -5, "abc"])
def test_durations_outside_their_bounds_are_refused(value: object) -> None:
    """A duration that is too short, too long or of another type is refused."""
    with pytest.raises(ValidationError, match=r"is not a duration such as .*, from 1s to 1m"):
        _read(Annotated[float, Duration(1, 60)], value)


@pytest.mark.parametrize("value", ["1023", 1023, "2000TiB", True, 1e6, None, [], "abc"])
def test_sizes_outside_their_bounds_are_refused(value: object) -> None:
    """A size that is too small, too large or of another type is refused."""
    with pytest.raises(ValidationError, match=r"is not a size such as .*, of at least 1KiB"):
        _read(Annotated[int, Size(1024)], value)
