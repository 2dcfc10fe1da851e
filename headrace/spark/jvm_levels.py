"""The levels of the loggers in Spark's JVM, as headrace.logs says."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import structlog
from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = structlog.get_logger(__name__)

_ROOT = "spark"

_NAMES = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARN",
    logging.ERROR: "ERROR",
}


class JvmLevels:
    """Hands levels of loggers under ``spark`` on to log4j.

    ``jvm`` gives pyspark's view of the JVM, None while there is none. Called by whoever sets a
    level; blocks for a few calls to the JVM.
    """

    def __init__(self, jvm: Callable[[], Any]) -> None:
        self._jvm = jvm
        self._chosen: dict[str, int] = {}

    def __call__(self, logger: str, level: int | None) -> None:
        """Set one logger's level; what cannot be set now is set when the JVM is built again."""
        if logger != _ROOT and not logger.startswith(f"{_ROOT}."):
            return
        self._chosen.pop(logger, None)
        if level is not None:
            self._chosen[logger] = level
        jvm = self._jvm()
        if jvm is None:
            return
        try:
            self._apply(jvm.org.apache.logging.log4j, {logger: level})
        except (Py4JError, OSError):
            log.warning("spark_level_not_set", of=logger, exc_info=True)

    def _apply(self, log4j: Any, changes: Mapping[str, int | None]) -> None:
        """Set levels; a default is what the file says, so it has to be read again."""
        configurator = log4j.core.config.Configurator
        if None in changes.values():
            configurator.reconfigure()
            changes = self._chosen
        for logger, number in changes.items():
            assert number is not None
            level, name = log4j.Level.toLevel(_NAMES[number]), logger.partition(".")[2]
            if name:
                configurator.setLevel(name, level)
            else:
                configurator.setRootLevel(level)
