"""The two sides of a comparison, each in a process of its own, working when it is asked to."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection
    from types import TracebackType

#: What a side is asked to do in one round, and what it measured.
Request = dict[str, Any]
Result = dict[str, Any]

#: Seconds that a side may take to get ready: Spark fetches its connector the first time.
OPEN_TIMEOUT = 300.0

#: Seconds that one round may take.
ROUND_TIMEOUT = 300.0

#: Seconds that a side may take to end by itself.
_CLOSE_TIMEOUT = 60.0

#: What a side answers once it is ready for rounds.
_READY = "ready"


class Work(Protocol):
    """One side of a comparison, as its own process has it."""

    def round(self, request: Request) -> Result:
        """Do one round and return what was measured."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class SideError(Exception):
    """A side failed, fell silent or ended; the text has its own words."""


class Side:
    """Runs a side's work in a new process, so that the sides share no interpreter and no JVM.

    ``opening`` is called there with ``settings``. The process rests between rounds, and ends with
    this one.

    Raises:
        SideError: the work could not be opened.
    """

    def __init__(
        self, name: str, opening: Callable[[Any], Work], settings: Mapping[str, Any]
    ) -> None:
        self.name = name
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe()
        self._link: Connection[Any, Any] = ours
        self._process = spawning.Process(
            target=_serve, args=(theirs, opening, dict(settings)), name=name, daemon=True
        )
        self._process.start()
        theirs.close()
        self._hear(OPEN_TIMEOUT)

    def round(self, request: Request) -> Result:
        """Have the side do one round. Blocks.

        Raises:
            SideError: the round failed or took longer than ``ROUND_TIMEOUT``.
        """
        self._link.send(request)
        return cast("Result", self._hear(ROUND_TIMEOUT))

    def _hear(self, seconds: float) -> object:
        try:
            if not self._link.poll(seconds):
                raise SideError(f"{self.name} gave no answer in {seconds:.0f} s")
            answer = self._link.recv()
        except (EOFError, OSError) as error:
            raise SideError(f"{self.name} ended by itself; its output is above") from error
        if isinstance(answer, SideError):
            raise answer
        return answer

    def close(self) -> None:
        """End the process: in order, by force when that takes too long."""
        self._link.close()
        self._process.join(_CLOSE_TIMEOUT)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _serve(link: Connection[Any, Any], opening: Callable[[Any], Work], settings: Any) -> None:
    """Open the work, do rounds until the other end is closed, then end."""
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    try:
        work = opening(settings)
    except BaseException as error:
        link.send(SideError(f"{type(error).__name__}: {error}"))
        raise
    link.send(_READY)
    try:
        while True:
            try:
                request = link.recv()
            except EOFError:
                return
            try:
                answer: object = work.round(request)
            except Exception as error:
                link.send(SideError(f"{type(error).__name__}: {error}"))
                raise
            link.send(answer)
    finally:
        work.close()
