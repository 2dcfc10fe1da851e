"""The activities that a channel's threads spend their time on: each moment counts for one."""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class ThreadActivity(Enum):
    """The activity of a thread."""

    FETCH = "fetch"
    """Takes records from the Kafka client and sorts them into the partitions' buffers."""

    PROCESS = "process"
    """Runs the processor's callbacks, and what surrounds them."""

    SPARK = "spark"
    """Runs a micro-batch's Spark jobs, up to the commit of the sink."""

    COMMIT = "commit"
    """Stores offsets, or has the sink make a result visible."""

    WAIT = "wait"
    """Waits for others: for the answer to a batch that it handed out, or for the sink."""

    BACK_PRESSURE = "back_pressure"
    """Fetches nothing because the buffers are full."""

    IDLE = "idle"
    """Has nothing to do."""


class ThreadRole(Enum):
    """The role of a thread."""

    FETCHER = "fetcher"
    """Reads from Kafka."""

    WORKER = "worker"
    """Hands batches to the processor."""

    LANE = "lane"
    """Submits Spark jobs, or runs reducers itself."""

    SINK = "sink"
    """Has the sink commit what the lane staged."""

    COMMITTER = "committer"
    """Stores offsets."""


#: What the threads of each role do. Each of these has a value from the start, also where it is 0.
ACTIVITIES: Mapping[ThreadRole, tuple[ThreadActivity, ...]] = {
    ThreadRole.FETCHER: (ThreadActivity.FETCH, ThreadActivity.BACK_PRESSURE, ThreadActivity.IDLE),
    ThreadRole.WORKER: (ThreadActivity.PROCESS, ThreadActivity.WAIT, ThreadActivity.IDLE),
    ThreadRole.LANE: (
        ThreadActivity.PROCESS,
        ThreadActivity.SPARK,
        ThreadActivity.COMMIT,
        ThreadActivity.WAIT,
        ThreadActivity.IDLE,
    ),
    ThreadRole.SINK: (ThreadActivity.COMMIT, ThreadActivity.IDLE),
    ThreadRole.COMMITTER: (ThreadActivity.COMMIT, ThreadActivity.IDLE),
}


class ThreadTime:
    """One thread's time. The thread itself says what it turns to; any thread reads ``seconds``.

    A change costs about a microsecond, going on with the same a tenth of it.
    """

    __slots__ = ("_doing", "_lock", "_seconds", "_since", "channel", "name", "role")

    def __init__(self, channel: str, role: ThreadRole, name: str) -> None:
        self.channel = channel
        self.role = role
        self.name = name
        self._seconds = dict.fromkeys(ACTIVITIES[role], 0.0)
        self._doing = ThreadActivity.IDLE
        self._since = perf_counter()
        self._lock = Lock()

    @property
    def key(self) -> tuple[str, ThreadRole, str]:
        """Return what no two threads share at a time."""
        return self.channel, self.role, self.name

    def switch_to(self, activity: ThreadActivity) -> None:
        """Count the time from now on for ``activity``, which has to be one of the role's."""
        if activity is self._doing:
            return
        with self._lock:
            # read under the lock, or a reader could have counted beyond it already
            now = perf_counter()
            self._seconds[self._doing] += now - self._since
            self._doing, self._since = activity, now

    @contextmanager
    def during(self, activity: ThreadActivity) -> Iterator[None]:
        """Count the block for ``activity``, and what follows for what was done before it."""
        before = self._doing
        self.switch_to(activity)
        try:
            yield
        finally:
            self.switch_to(before)

    def seconds(self) -> dict[ThreadActivity, float]:
        """Return the time spent so far, the activity under way included. It never goes back."""
        with self._lock:
            spent = dict(self._seconds)
            spent[self._doing] += perf_counter() - self._since
        return spent
