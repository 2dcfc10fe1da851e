"""Who changed what, from where, and how it went: one log event for each change."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from headrace.admin.problems import ApiError
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.admin.access import Caller
    from headrace.admin.requests import Change

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """A change that somebody asks for. ``channel`` is None where it is the process's."""

    action: str
    caller: Caller
    change: Change
    channel: str | None = None

    @property
    def by(self) -> str:
        """Who, for people: the name that the caller gave, or else what it showed."""
        return self.change.by or f"{self.caller.proof} from {self.caller.host}"


@contextmanager
def audited(asked: Asked) -> Iterator[Asked]:
    """Log the change with what became of the block: done, refused or failed."""
    try:
        yield asked
    except (ApiError, HeadraceError) as error:
        name = error.problem.error if isinstance(error, ApiError) else type(error).__name__
        _log(asked, "refused", f"{name}: {error}")
        raise
    except Exception as error:
        _log(asked, "failed", type(error).__name__)
        raise
    _log(asked, "done", None)


def _log(asked: Asked, outcome: str, error: str | None) -> None:
    wanted: dict[str, Any] = asked.change.model_dump(
        mode="json", exclude={"by"}, exclude_defaults=True
    )
    log.warning(
        "admin_change",
        action=asked.action,
        channel=asked.channel,
        asked=wanted,
        by=asked.by,
        proof=asked.caller.proof,
        address=asked.caller.address,
        outcome=outcome,
        error=error,
    )
