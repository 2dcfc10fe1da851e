"""One measurement each: a pause, a resume, a reload, a stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.lifecycle.daemon import CHANGE, PATIENCE, Daemon
from benchmarks.lifecycle.world import LOAD, SOMETIMES, STEADY
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.notes import Note

#: Seconds for which a pause is looked at.
_LOOK = 0.5

#: What tells that a partition was given back, or taken away.
RELEASED = ("terminated", "lost")


class Measuring:
    """Measures a daemon that is alone in its group and under load. For one thread."""

    def __init__(self, daemon: Daemon, partitions: int) -> None:
        self._daemon = daemon
        self._partitions = partitions
        #: batches that ran, of what was paused, after the acknowledgement
        self.violations = 0

    def pause(self, mode: str, partition: int | None = None) -> dict[str, float]:
        """Pause and resume: seconds until acknowledged, and from the resume to the first batch."""
        scope = {} if partition is None else {"topic": STEADY, "partition": partition}
        asked = SYSTEM_CLOCK.monotonic()
        answer = self._daemon.post(f"channels/{LOAD}/pause", mode=mode, wait_s=CHANGE, **scope)
        told = SYSTEM_CLOCK.monotonic()
        if not answer["acknowledged"]:
            raise AssertionError(f"the pause ({mode}) was not acknowledged in {CHANGE:.0f} s")
        self._look_at_rest(told, partition)
        self._check_drained(mode, asked, partition)
        resumed = SYSTEM_CLOCK.monotonic()
        self._daemon.post(f"channels/{LOAD}/resume", **scope)
        _await(lambda: bool(self._of(partition, resumed, "began")))
        first = self._of(partition, resumed, "began")[0].at
        self.await_all()
        return {"pause_ack_s": told - asked, "resume_first_batch_s": first - resumed}

    def reload_hot(self) -> tuple[dict[str, float], int]:
        """Change hot values, ask for a reload: seconds until in effect, and partitions released."""
        channel = self._daemon.document["channels"][LOAD]
        batch, workers = channel["batch"], channel.get("workers", 2)
        channel |= {
            "batch": {**batch, "max_records": 90 - batch["max_records"]},
            "workers": 5 - workers,
            "commit_interval": f"{500 + 100 * workers}ms",
        }
        began = SYSTEM_CLOCK.monotonic()
        self._daemon.reload()
        seconds = SYSTEM_CLOCK.monotonic() - began
        return {"reload_hot_s": seconds}, self._released(began)

    def reload_topic(self) -> tuple[dict[str, float], int]:
        """Add a topic and take it away again: seconds until each, and what adding released."""
        channel = self._daemon.document["channels"][LOAD]
        channel["topics"] = [STEADY, SOMETIMES]
        began = SYSTEM_CLOCK.monotonic()
        self._daemon.reload()
        _await(lambda: len(self._begun(SOMETIMES, began)) == self._partitions // 2)
        added = max(self._begun(SOMETIMES, began).values()) - began
        released = self._released(began)
        channel["topics"] = [STEADY]
        removed = SYSTEM_CLOCK.monotonic()
        self._daemon.reload()
        self.await_owned(LOAD)
        seconds = {
            "reload_topic_added_s": added,
            "reload_topic_removed_s": SYSTEM_CLOCK.monotonic() - removed,
        }
        kept = [n for n in self._since(removed, *RELEASED) if n.topic == STEADY]
        return seconds, released + len(kept)

    def stop(self) -> dict[str, float]:
        """Stop: seconds from the signal, and from the end of the last batch that ran then."""
        asked, ended = self._daemon.stop()
        done = [note.at for note in self._since(asked, "done")]
        return {"stop_s": ended - asked, "stop_over_batch_s": ended - max([asked, *done])}

    def await_owned(self, channel: str) -> None:
        """Wait until every partition is the daemon's."""
        _await(lambda: len(self._daemon.partitions(channel)) == self._partitions)

    def await_busy(self) -> None:
        """Wait until a batch has just begun."""
        now = SYSTEM_CLOCK.monotonic()
        _await(lambda: bool(self._since(now, "began")))

    # --- parts ----------------------------------------------------------------------------------

    def _look_at_rest(self, told: float, partition: int | None) -> None:
        """Watch for a moment, and count what runs although it is paused."""
        wait_for(lambda: SYSTEM_CLOCK.monotonic() - told > _LOOK, Deadline.after(PATIENCE))
        self.violations += len(self._of(partition, told, "began", "done"))

    def _check_drained(self, mode: str, asked: float, partition: int | None) -> None:
        """Make sure that it was the pause that is measured: drained is given back, held is not."""
        given_back = {n.partition for n in self._since(asked, *RELEASED)}
        wanted = set(range(self._partitions)) if partition is None else {partition}
        if given_back != (wanted if mode == "drain" else set()):
            raise AssertionError(f"the pause ({mode}) gave {sorted(map(str, given_back))} back")

    def _of(self, partition: int | None, at: float, *events: str) -> list[Note]:
        return [n for n in self._since(at, *events) if partition in {None, n.partition}]

    def _since(self, at: float, *events: str) -> list[Note]:
        return self._daemon.notes.since(at, *events)

    def _released(self, at: float) -> int:
        return len(self._since(at, *RELEASED))

    def await_all(self) -> None:
        """Wait until every partition is delivered from."""
        now = SYSTEM_CLOCK.monotonic()
        _await(lambda: len(self._begun(STEADY, now)) == self._partitions)

    def _begun(self, topic: str, at: float) -> dict[int | None, float]:
        """Return when each partition's first batch began."""
        found = [n for n in self._since(at, "began") if n.topic == topic]
        return {note.partition: note.at for note in reversed(found)}


def _await(condition: Callable[[], bool]) -> None:
    if not wait_for(condition, Deadline.after(PATIENCE)):
        raise AssertionError(f"waited in vain for {PATIENCE:.0f} s")
