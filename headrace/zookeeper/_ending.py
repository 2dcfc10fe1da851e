"""Ending kazoo's client within a time."""

from __future__ import annotations

import threading
from typing import Any

import structlog
from kazoo.protocol.states import KazooState

log = structlog.get_logger(__name__)


class Ending:
    """The end of a client, on a thread of its own: kazoo's stop can wait without limit.

    ``told_servers`` is true once a server has answered that the session is over.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._thread = threading.Thread(target=self._run, name="zookeeper-close", daemon=True)
        self._lock = threading.Lock()
        self.told_servers = False
        self._disconnected = False

    def wait(self, timeout: float) -> bool:
        """Begin to end, and wait for it; whether it came to an end."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._client.add_listener(self._on_state)
        self._disconnected = not self._client.connected
        try:
            self._client.stop()
            self._client.close()
        except Exception:
            # the servers end what we cannot, after the session's time-out
            log.exception("zookeeper_close_failed")
        else:
            self.told_servers = not self._disconnected

    def _on_state(self, state: str) -> None:
        """Hear of a connection that is lost before the answer has come. kazoo's thread."""
        if state == KazooState.SUSPENDED:
            self._disconnected = True
