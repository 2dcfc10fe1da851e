"""The line of a broker, by what the client logs of it."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.kafka.broker_lines import LOSING_MARKS, is_of_4_3, warn_of_lost_marks
from tests.pages import ROOT

_LINE = "APIVERSION [rdkafka#consumer-5] [thrd:h:1/1]: h:1/1:   ApiKey {} Versions {}"


@pytest.mark.parametrize(
    ("versions", "found"), [("1..5", True), ("1..4", False), ("1..6", False), ("0..15", False)]
)
def test_a_broker_of_4_3_is_known_by_one_request(versions: str, found: bool) -> None:
    """The highest accepted version of the request shows it; later lines accept more."""
    lines = [_LINE.format("Produce (0)", "0..5"), _LINE.format("DescribeLogDirs (35)", versions)]
    assert is_of_4_3(lines) is found
    assert not is_of_4_3(["INIT DescribeLogDirs", _LINE.format("Fetch (1)", "1..5")])


def test_silent_brokers_cause_no_warning() -> None:
    """A start goes on without the check."""
    with capture_logs() as logs:
        nowhere = {"bootstrap.servers": "127.0.0.1:1"}
        assert not warn_of_lost_marks(nowhere, Deadline.after(0.2))
    assert logs == []


def test_releases_that_lose_marks_are_told_on_the_page_on_the_installation() -> None:
    """Brokers are chosen there, before anything can warn at a start."""
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert f"Kafka {LOSING_MARKS} lose" in " ".join(text.split())
