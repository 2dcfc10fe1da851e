"""The worker threads: each takes the partition that is due and does one turn with it."""

from __future__ import annotations

from itertools import count
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING

import structlog

from headrace.channel.callbacks import WorkerAbandoned
from headrace.channel.states import Ending
from headrace.errors import FatalError
from headrace.logs import Bound
from headrace.thread_time import Activity, Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.partition import OwnedPartition
    from headrace.channel.scheduler import Scheduler
    from headrace.clock import Deadline
    from headrace.metrics import Metrics
    from headrace.thread_time import ThreadTime

log = structlog.get_logger(__name__)

#: Seconds a worker waits for a partition before it looks whether there is one, all the same.
TAKE_TIMEOUT = 5.0


class Workers:
    """A pool of worker threads that take partitions in turn.

    ``busy`` says whether a batch is out whose answer is still open.
    """

    def __init__(
        self,
        *,
        count: int,
        scheduler: Scheduler,
        turn: Callable[[OwnedPartition], None],
        busy: Callable[[], bool],
        fail: Callable[[BaseException], None],
        metrics: Metrics,
        channel: str,
    ) -> None:
        self._wanted = count
        self._active = 0
        self._scheduler = scheduler
        self._turn = turn
        self._busy = busy
        self._fail = fail
        self._metrics = metrics
        self._channel = channel
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._numbers: set[int] = set()
        self._closed = False

    def start(self) -> None:
        """Start the threads."""
        self.resize(self._wanted)

    def resize(self, count: int) -> None:
        """Have so many threads. Surplus ones end after the turn they are in, or within seconds."""
        with self._lock:
            self._wanted = count
            missing = count - self._active
            self._active = max(self._active, count)
        for _ in range(missing):
            self.replace()

    def replace(self) -> None:
        """Start one more thread, in place of one that hangs."""
        with self._lock:
            # the lowest that is free: names are labels of a metric, which have to stay few
            number = next(n for n in count(1) if n not in self._numbers)
            self._numbers.add(number)
            name = f"{self._channel}-worker-{number}"
            thread = Thread(target=self._run, args=[number], name=name, daemon=True)
            self._threads.append(thread)
        thread.start()

    def stop(self, deadline: Deadline) -> list[str]:
        """End the threads; return the names of those that were still busy at the deadline."""
        self._closed = True
        self._scheduler.close()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(deadline.remaining)
        return [thread.name for thread in threads if thread.is_alive()]

    def _bound(self, owned: OwnedPartition) -> Bound:
        """Have every line that this thread logs meanwhile say for which partition it works."""
        topic, partition = owned.partition
        return Bound(channel=self._channel, topic=topic, partition=partition, epoch=owned.epoch)

    def _is_surplus(self) -> bool:
        """Whether the calling thread is to end, because there are more than wanted."""
        with self._lock:
            if self._active <= self._wanted:
                return False
            self._active -= 1
            self._threads.remove(current_thread())
            return True

    def _run(self, number: int) -> None:
        time = self._metrics.thread_time(self._channel, Role.WORKER, f"worker-{number}")
        try:
            self._take_turns(time)
        finally:
            self._metrics.forget_thread(time)
            with self._lock:
                self._numbers.discard(number)

    def _take_turns(self, time: ThreadTime) -> None:
        while not self._closed and not self._is_surplus():
            owned = self._scheduler.take(TAKE_TIMEOUT)
            if owned is None:
                time.turn_to(Activity.WAIT if self._busy() else Activity.IDLE)
                continue
            time.turn_to(Activity.PROCESS)
            holder = owned.holder
            try:
                with self._bound(owned):
                    self._turn(owned)
            except WorkerAbandoned:
                log.warning("abandoned_worker_returned", channel=self._channel)
                return
            except BaseException as error:
                log.exception(
                    "worker_failed", channel=self._channel, partition=str(owned.partition)
                )
                self._fail(
                    FatalError(
                        f"{owned.partition}: a worker failed with {type(error).__name__}: {error}; "
                        "the process has to be restarted, and the log reported"
                    )
                )
                if owned.ending is Ending.ABANDONED:
                    continue  # it cannot even be ended, so nobody gets it any more
                owned.end(Ending.ABANDONED)
            time.turn_to(Activity.WAIT if owned.outstanding else Activity.IDLE)
            self._scheduler.give_back(owned, holder)
