from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from headrace.config import LoggingConfig
from headrace.telemetry.logs import Bound, Subject, configure_logging, flush, recent_events
from headrace.telemetry.logs.recent import SUBJECTS, TOGETHER, RecentEvent, RecentEvents, described

if TYPE_CHECKING:
    import pytest

DOCUMENTED = Path(__file__).parents[4] / "docs" / "events.md"


def _newest() -> int:
    return max((event.number for event in recent_events()), default=0)


def _names(events: list[RecentEvent]) -> list[str]:
    return [event.event for event in events]


def test_troubles_and_milestones_are_kept_at_any_level(capsys: pytest.CaptureFixture[str]) -> None:
    """Events are kept at any level of the log, and others are left out."""
    configure_logging(LoggingConfig(level="error"))
    before = _newest()
    log = structlog.get_logger("headrace.test")
    log.debug("partition_state_changed")
    log.info("something_usual")
    log.info("group_rebalanced", channel="main")
    log.warning("commit_failed", channel="main")
    found = recent_events(before)
    assert [(e.event, e.level, e.subject) for e in found] == [
        ("group_rebalanced", "info", Subject.GROUP),
        ("commit_failed", "warning", Subject.WORK),
    ]
    flush()
    assert capsys.readouterr().err == ""


def test_the_threads_context_and_the_error_are_among_the_fields() -> None:
    """Fields bound to the thread are kept, and an exception is one line."""
    configure_logging(LoggingConfig(level="error"))
    before = _newest()
    with structlog.contextvars.bound_contextvars(channel="main", partition=3):
        try:
            int("N/A")
        except ValueError:
            structlog.get_logger("headrace.test").exception("worker_failed")
    (event,) = recent_events(before)
    assert event.level == "error"
    assert event.fields == {
        "channel": "main",
        "partition": 3,
        "error": "ValueError: invalid literal for int() with base 10: 'N/A'",
    }


def test_events_of_one_kind_in_succession_are_one_entry() -> None:
    """They are counted, with the first time, the last time and the last fields."""
    ring = RecentEvents()
    for attempt in range(3):
        ring.add("processor_error", "warning", {"channel": "a", "attempts": attempt}, 100 + attempt)
    ring.add("processor_error", "warning", {"channel": "b"}, 103)
    first, other = ring.after()
    assert (first.count, first.first, first.last, first.fields["attempts"]) == (3, 100, 102, 2)
    assert (other.count, other.number) == (1, 4)
    assert _names(ring.after(first.number)) == ["processor_error"]


def test_an_event_that_comes_again_much_later_is_a_new_entry() -> None:
    """After a quiet minute the same event is a new entry."""
    ring = RecentEvents()
    ring.add("commit_failed", "warning", {}, 100)
    ring.add("commit_failed", "warning", {}, 101 + TOGETHER)
    assert [event.count for event in ring.after()] == [1, 1]


def test_a_flood_of_troubles_leaves_the_milestones() -> None:
    """Each kind has a bound of its own, within which the newest stay."""
    ring = RecentEvents(kept=5)
    ring.add("group_rebalanced", "info", {}, 1)
    for number in range(20):
        ring.add("commit_failed", "warning", {"channel": str(number)}, 2 + number)
    found = ring.after()
    assert len(found) == 6
    assert found[0].event == "group_rebalanced"
    assert [event.fields["channel"] for event in found[1:]] == ["15", "16", "17", "18", "19"]


def test_fields_are_bounded() -> None:
    """Long texts are cut, and of long lists the first items are kept."""
    given: dict[str, Any] = {"event": "x", "mine": [*range(10)], "error": "e" * 1000, "epoch": 3}
    fields = described(given)
    assert fields["mine"] == "0, 1, 2 and 7 more"
    assert len(str(fields["error"])) == 300
    assert fields["epoch"] == 3
    assert "event" not in fields


def test_nested_fields_are_written_in_words() -> None:
    """Python's notation of values is not shown at any depth."""
    pending = {"path": "workers", "between": ("1", None)}
    fields = described({"event": "x", "levels": {"": "info", "kazoo": "debug"}, "all": [pending]})
    assert fields["levels"] == ": info, kazoo: debug"
    assert fields["all"] == "(path: workers, between: (1, None))"


def test_every_milestone_is_an_event_of_the_documentation() -> None:
    """Each kept name is that of a documented event."""
    text = DOCUMENTED.read_text(encoding="utf-8")
    assert [name for name in SUBJECTS if f"`{name}`" not in text] == []


def test_bound_fields_of_a_worker_are_kept() -> None:
    """Events of two channels are two entries, by what their threads bind."""
    configure_logging(LoggingConfig(level="error"))
    before = _newest()
    for channel in ("one", "other"):
        with Bound(channel=channel, topic="events", partition=3):
            structlog.get_logger("headrace.test").warning("commit_failed")
    assert [event.fields["channel"] for event in recent_events(before)] == ["one", "other"]


def test_half_a_character_is_kept_as_a_question_mark() -> None:
    """An error may quote half of a character, which no answer in UTF-8 can have."""
    ring = RecentEvents()
    ring.add("processor_error", "warning", described({"error": "bad \ud83d", "of": ["\ud83d"]}), 1)
    assert ring.after()[0].fields == {"error": "bad ?", "of": "?"}
