from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from headrace.config import LoggingConfig
from headrace.telemetry.logs import configure_logging, levels, listen, set_level, unlisten

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_level_of_the_process_changes_while_it_runs(
    lines: Callable[[], list[dict[str, Any]]],
) -> None:
    """A logger that was used before logs from the new level on."""
    configure_logging(LoggingConfig())
    log = structlog.get_logger("headrace.channel.workers")
    log.debug("not_wanted")
    set_level("debug")
    log.debug("wanted")
    set_level("warning")
    log.info("not_wanted")
    assert [line["event"] for line in lines()] == ["wanted"]


def test_one_loggers_level_wins(lines: Callable[[], list[dict[str, Any]]]) -> None:
    """A logger's own level counts for those below it, until it is forgotten."""
    configure_logging(LoggingConfig())
    set_level("debug", "headrace.zookeeper")
    structlog.get_logger("headrace.zookeeper.session").debug("wanted")
    structlog.get_logger("headrace.kafka.source").debug("not_wanted")
    assert levels() == {"": "info", "headrace.zookeeper": "debug"}
    set_level(None, "headrace.zookeeper")
    structlog.get_logger("headrace.zookeeper.session").debug("not_wanted")
    assert [line["event"] for line in lines()] == ["wanted"]
    assert levels() == {"": "info"}


def test_libraries_stay_quiet_unless_named() -> None:
    """Debugging the process does not bring kazoo's every ping; debugging kazoo does."""
    configure_logging(LoggingConfig())
    set_level("debug")
    assert not logging.getLogger("kazoo.client").isEnabledFor(logging.INFO)
    set_level("debug", "kazoo")
    assert logging.getLogger("kazoo.client").isEnabledFor(logging.DEBUG)
    set_level("error")
    assert logging.getLogger("kazoo.client").isEnabledFor(logging.DEBUG)
    set_level(None, "kazoo")
    assert not logging.getLogger("kazoo.client").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(("level", "logger"), [("loud", None), ("INFO", "kazoo"), (None, None)])
def test_an_unknown_level_is_refused(level: str | None, logger: str | None) -> None:
    """The error says which levels there are, or that the process has to have one."""
    with pytest.raises(ValueError, match=r"debug, info, warning, error|has to have"):
        set_level(level, logger)


def test_a_listener_learns_earlier_levels_too() -> None:
    """A log that is written elsewhere gets the present levels and each change."""
    heard: list[tuple[str, int | None]] = []

    def hear(logger: str, level: int | None) -> None:
        heard.append((logger, level))

    set_level("debug", "spark.org.apache")
    listen(hear)
    set_level("error", "spark")
    set_level(None, "spark.org.apache")
    unlisten(hear)
    set_level("info", "spark")
    assert heard == [("spark.org.apache", 10), ("spark", 40), ("spark.org.apache", None)]
