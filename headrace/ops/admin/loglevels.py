"""Log levels that go back by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock, Timer
from typing import TYPE_CHECKING

import structlog

from headrace.core.errors import Refusal, RefusedError
from headrace.telemetry.logs import levels, set_level

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger(__name__)

#: Loggers that may have levels of their own: each keeps a name, and a thread if it goes back.
MOST = 50


@dataclass(frozen=True, slots=True, eq=False)
class _Loan:
    """A level that is to go back to ``before``; None for a logger that had none of its own."""

    timer: Timer
    level: str | None
    before: str | None


class LogLevels:
    """Changes of the process's log levels, by logger, "" for the process. Any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loans: dict[str, _Loan] = {}

    def change(self, level: str | None, logger: str, seconds: float | None) -> Mapping[str, str]:
        """Log ``logger`` from ``level`` on, for ``seconds`` or for good, and return all levels.

        A change that is to go back goes back to what was there before the first of several.

        Raises:
            RefusedError: as many loggers as may be have levels of their own already.
        """
        with self._lock:
            known = levels()
            taken = known.keys() | self._loans.keys()
            if logger not in taken and level is None:
                return known  # it has none of its own, and a name is not to be kept for that
            if logger not in taken and len(taken) > MOST:
                raise RefusedError(
                    Refusal.TOO_MANY_LOGGERS,
                    f"{MOST} loggers have levels of their own already",
                    value=logger,
                    next_step="give some back with the level null, or name one above several",
                )
            before = known.get(logger)
            set_level(level, logger or None)
            loan = self._loans.pop(logger, None)
            if loan is not None:
                loan.timer.cancel()
                before = loan.before
            if seconds is not None:
                self._loans[logger] = self._lend(logger, level, before, seconds)
        return levels()

    def close(self) -> None:
        """Cancel all pending resets of levels."""
        with self._lock:
            for loan in self._loans.values():
                loan.timer.cancel()
            self._loans.clear()

    def _lend(self, logger: str, level: str | None, before: str | None, seconds: float) -> _Loan:
        timer = Timer(seconds, lambda: self._return(logger, loan))
        timer.daemon = True
        timer.name = "admin-log-level"
        loan = _Loan(timer, level, before)
        timer.start()
        return loan

    def _return(self, logger: str, loan: _Loan) -> None:
        with self._lock:
            if self._loans.get(logger) is not loan:
                return
            del self._loans[logger]
            if levels().get(logger) != loan.level:
                return  # a reload has set another one meanwhile
            set_level(loan.before, logger or None)
        log.info("log_level_reverted", of=logger, level=loan.before)
