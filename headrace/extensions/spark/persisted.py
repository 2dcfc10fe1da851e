"""Data that a reducer persists in Spark, let go once its micro-batch is over."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

from py4j.protocol import Py4JError
from pyspark import RDD, StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql.classic.dataframe import DataFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import SparkContext

_NUMBER = re.compile(r"\d+")


#: Guards which jobs are under way, and that pyspark's methods are replaced once.
_GUARD = threading.Lock()


class Persisted:
    """Data that one job's reducer persisted and nothing had persisted before.

    What it persists by ``cache`` and ``persist`` of a DataFrame or an RDD, on the lane's thread, is
    known for sure. What comes otherwise, as by ``CACHE TABLE`` or within a library, is told by the
    context's persistent RDDs, as long as no other lane's job ran meanwhile: it may be that one's.
    """

    _running: ClassVar[set[Persisted]] = set()

    def __init__(self, context: SparkContext) -> None:
        self._context: Any = context
        self._found: list[Any] = []
        self._others: set[int] = set()
        self._is_alone = True

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what this thread's block persists; let it go at once where the block fails."""
        before = self._persistent()
        with _GUARD:
            for other in self._running:
                self._is_alone = other._is_alone = False  # noqa: SLF001 - one of our own
            self._running.add(self)
        _CURRENT.job = self
        try:
            yield
            if self._is_alone:
                self._others = self._persistent() - before
        except BaseException:
            self.release()
            raise
        finally:
            _CURRENT.job = None
            with _GUARD:
                self._running.discard(self)

    def add(self, persisted: Any) -> None:
        """Record a DataFrame or an RDD."""
        self._found.append(persisted)

    def release(self) -> None:
        """Unpersist what was persisted. Any thread; a second call does nothing."""
        found, self._found = self._found, []
        others, self._others = self._others, set()
        # a JVM that is gone keeps nothing
        with suppress(Py4JError, PySparkException, OSError):
            for each in reversed(found):
                each.unpersist()
            if others:
                persistent = self._context._jsc.getPersistentRDDs()  # noqa: SLF001
                for number in others & self._persistent():
                    persistent.get(number).unpersist(False)

    def _persistent(self) -> set[int]:
        """Return the numbers of the context's persistent RDDs, by one call of the JVM."""
        numbers = self._context._jsc.getPersistentRDDs().keySet().toString()  # noqa: SLF001
        return set(map(int, _NUMBER.findall(numbers)))


class _Current(threading.local):
    """The job whose reducer this thread runs."""

    job: Persisted | None = None


_CURRENT = _Current()

#: Not persisted at all.
_NONE = StorageLevel(False, False, False, False)


def _recorded(persist: Callable[..., Any], level: Callable[[Any], StorageLevel]) -> Any:
    """Return a method that persists, and has the thread's job know of what was not before."""

    @wraps(persist)
    def recorded(self: Any, *arguments: Any, **named: Any) -> Any:
        job = _CURRENT.job
        is_new = job is not None and level(self) == _NONE
        result = persist(self, *arguments, **named)
        if job is not None and is_new:
            job.add(self)
        return result

    return recorded


def record() -> None:
    """Patch pyspark's methods to record what they persist. Once in a process."""
    with _GUARD:
        if hasattr(DataFrame.persist, "__wrapped__"):
            return
        kinds: dict[Any, Callable[[Any], StorageLevel]] = {
            DataFrame: lambda frame: frame.storageLevel,
            RDD: lambda rdd: rdd.getStorageLevel(),
        }
        for kind, level in kinds.items():
            for name in ("persist", "cache"):
                setattr(kind, name, _recorded(getattr(kind, name), level))
