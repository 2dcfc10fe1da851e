"""A TCP connection that a test may cut: forwards one loopback port to another."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Event, Lock, Thread

from headrace.core.clock import Deadline
from headrace.devstack.server import LOOPBACK
from headrace.devstack.wait import wait_for

_CHUNK = 1 << 16

#: Seconds that a connection waits for its target to listen.
_PATIENCE = 5.0


class Cable:
    """Forwards what comes in on ``port`` to ``target``. All methods are safe on any thread."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._whole = Event()
        self._whole.set()
        self._answering = Event()
        self._answering.set()
        self._refusing = Event()
        self._lock = Lock()
        self._sockets: set[socket.socket] = set()
        Thread(target=self._accept, name=f"cable-{self.port}", daemon=True).start()

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"{LOOPBACK}:{self.port}"

    def cut(self) -> None:
        """Let nothing through and tell neither side, as a network that drops packets does."""
        self._whole.clear()

    def mute(self) -> None:
        """Let nothing through that the target answers, and tell neither side."""
        self._answering.clear()

    def break_off(self) -> None:
        """End all connections, and new ones as soon as they are made."""
        self._refusing.set()
        self._end_connections()

    def mend(self) -> None:
        """Let everything through, also what was sent while the cable was cut or mute."""
        self._refusing.clear()
        self._answering.set()
        self._whole.set()

    def close(self) -> None:
        """End all connections and stop listening."""
        self._refusing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._answering.set()
        self._whole.set()
        self._end_connections()

    def _end_connections(self) -> None:
        with self._lock:
            ended, self._sockets = self._sockets, set()
        for each in ended:
            _end(each)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._connect, args=[near], daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._whole.wait()
        # a server that is refused tries again, one whose connection is closed may not
        far = wait_for(self._reach, Deadline.after(_PATIENCE))
        if far is None:
            near.close()
            return
        with self._lock:
            self._sockets |= {near, far}
        if self._refusing.is_set():
            self._end_connections()
        Thread(target=self._forward, args=[near, far, self._whole], daemon=True).start()
        self._forward(far, near, self._answering)
        for each in (near, far):
            each.close()

    def _reach(self) -> socket.socket | None:
        try:
            return socket.create_connection((LOOPBACK, self.target))
        except OSError:
            return None

    def _forward(self, source: socket.socket, sink: socket.socket, may_pass: Event) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                may_pass.wait()
                self._whole.wait()
                sink.sendall(data)
        self._whole.wait()
        _end(source)
        _end(sink)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
