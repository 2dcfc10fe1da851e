"""Threads that do not end in silence."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

import structlog

from headrace.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger(__name__)


def guarded_thread(
    name: str, run: Callable[[], None], fail: Callable[[BaseException], None]
) -> Thread:
    """Return a thread, not started, that fails its channel when ``run`` raises.

    The loops handle the errors they expect. One that ends by another would stall its channel for
    good without anybody noticing, so the process has to be started afresh.
    """

    def guarded() -> None:
        try:
            run()
        except Exception as error:
            log.exception("thread_failed", thread=name)
            reason = f"{type(error).__name__}: {error}"
            fail(FatalError(f"thread {name} ended with {reason}; the process has to be restarted"))

    return Thread(target=guarded, name=name, daemon=True)
