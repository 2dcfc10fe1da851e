from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import structlog

from headrace.config import LoggingConfig
from headrace.telemetry.logs import Budget, Repeats, configure_logging
from headrace.telemetry.logs.pipe import BURST, LIBRARY_BURST, RepeatFilter
from headrace.telemetry.logs.recent import INTERVAL, KINDS
from headrace.testing.channel import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    Lines = Callable[[], list[dict[str, Any]]]


def _limited(clock: FakeClock) -> None:
    """Write to the log through a filter that goes by ``clock``."""
    configure_logging(LoggingConfig(level="debug"))
    (handler,) = logging.getLogger().handlers
    handler.filters[:] = [RepeatFilter(Repeats(BURST, clock))]


def test_repeats_are_counted_and_not_told() -> None:
    """One line of a kind passes in each interval, and the next says how many did not."""
    clock = FakeClock()
    repeats = Repeats(clock=clock)
    assert repeats.admit("refused") == 0
    assert [repeats.admit("refused") for _ in range(3)] == [None] * 3
    assert repeats.admit("timed out") == 0
    clock.advance(INTERVAL)
    assert repeats.admit("refused") == 3
    assert repeats.admit("refused") is None


def test_kinds_are_forgotten_and_counts_are_not() -> None:
    """Memory is bounded: the oldest kind makes room, and what it held back is still told."""
    clock = FakeClock()
    repeats = Repeats(clock=clock)
    for _ in range(3):
        repeats.admit("first")
    for number in range(KINDS):
        repeats.admit(number)
    assert repeats.over() == [("first", 2)]
    assert repeats.admit("first") == 0


def test_counts_that_are_not_asked_for_are_bounded_too() -> None:
    """The kinds that are remembered are limited, however many occur."""
    clock = FakeClock()
    repeats = Repeats(clock=clock)
    for number in range(3 * KINDS):
        repeats.admit(number)
        repeats.admit(number)
    clock.advance(INTERVAL)
    # of those that make room as many as are counted
    assert [kind for kind, _ in repeats.over()] == list(range(KINDS, 3 * KINDS))


def test_repeats_of_one_partition_hold_back_no_other(lines: Lines) -> None:
    """The event's subject decides on a repeat; the next line has the count."""
    clock = FakeClock()
    _limited(clock)
    log = structlog.get_logger("headrace.channel.callbacks")
    for number in range(BURST + 5):
        log.warning("processor_error", topic="t", partition=0, first_offset=number)
    log.warning("processor_error", topic="t", partition=1)
    assert [line["partition"] for line in lines()] == [0] * BURST + [1]
    clock.advance(INTERVAL)
    log.warning("processor_error", topic="t", partition=0)
    assert [line["repeated"] for line in lines()] == [5]


def test_held_back_repeats_are_summed_up(lines: Lines) -> None:
    """Any line writes the counts of other kinds whose interval is over."""
    clock = FakeClock()
    _limited(clock)
    for _ in range(BURST + 4):
        structlog.get_logger("headrace.x").info("join_failed", member="m")
    clock.advance(INTERVAL)
    structlog.get_logger("headrace.y").info("stopping")
    *_, left_out, last = lines()
    assert last["event"] == "stopping"
    assert left_out["event"] == "repeats_suppressed"
    assert (left_out["of"], left_out["member"], left_out["repeated"]) == ("join_failed", "m", 4)


def test_errors_debugging_and_the_users_lines_are_never_held_back(lines: Lines) -> None:
    """An error may say why something ended, debug was asked for, and the rest is not ours."""
    _limited(FakeClock())
    for _ in range(BURST * 3):
        structlog.get_logger("headrace.x").error("batch_skipped")
        structlog.get_logger("headrace.x").debug("partition_state_changed")
        structlog.get_logger("orders").info("order_late")
        logging.getLogger("orders").warning("late")
    assert len(lines()) == BURST * 3 * 4


def test_lines_of_a_library_are_held_back(lines: Lines) -> None:
    """A library may not fill the log, though each of its lines is another text."""
    _limited(FakeClock())
    for number in range(LIBRARY_BURST * 2):
        logging.getLogger("kazoo.client").error("connection %d failed", number)
    assert len(lines()) == BURST
    for number in range(LIBRARY_BURST * 2):
        logging.getLogger("py4j").error(f"connection {number} failed")  # noqa: G004 - as a library may
    assert len(lines()) == LIBRARY_BURST


def test_a_budget_lets_a_burst_through_and_then_a_rate() -> None:
    """After the burst as many lines pass as seconds times rate."""
    clock = FakeClock()
    budget = Budget(2.0, 3, clock)
    assert [budget.admit() for _ in range(5)] == [True] * 3 + [False] * 2
    clock.advance(1.0)
    assert [budget.admit() for _ in range(3)] == [True, True, False]


def test_an_operator_s_change_is_never_held_back(lines: Lines) -> None:
    """Each change by an operator and each skipped record has its line."""
    _limited(FakeClock())
    log = structlog.get_logger("headrace.test")
    for number in range(3 * BURST):
        log.warning("admin_change", channel="main", action="skip")
        log.warning("skip_applied", channel="main", offset=number)
    assert len(lines()) == 6 * BURST
