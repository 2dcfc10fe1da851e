"""The clock of the operating system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.core.clock import SYSTEM_CLOCK

SUSPENDED = 3600
"""Seconds by which the machine of the other process was suspended."""

ELSEWHERE = (
    "unshare",
    "--user",
    "--map-root-user",
    "--time",
    "--fork",
    "--boottime",
    str(SUSPENDED),
)
"""A name space of Linux in which only the clock that counts suspension is ahead."""


@pytest.fixture
def asleep() -> tuple[str, ...]:
    """Return a command that runs another one as if the machine had been suspended."""
    try:
        subprocess.run([*ELSEWHERE, "true"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no time name space can be made here: {error}")
    return ELSEWHERE


def test_time_in_which_the_machine_is_suspended_counts(asleep: tuple[str, ...]) -> None:
    """The monotonic clock goes on while the machine sleeps, as ZooKeeper's servers do."""
    before = SYSTEM_CLOCK.monotonic()
    code = "from headrace.core.clock import SYSTEM_CLOCK; print(SYSTEM_CLOCK.monotonic())"
    told = subprocess.run(
        [*asleep, sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert float(told) >= before + SUSPENDED


def test_monotonic_seconds_never_fall() -> None:
    """Two readings one after the other are in order."""
    assert SYSTEM_CLOCK.monotonic() <= SYSTEM_CLOCK.monotonic()
