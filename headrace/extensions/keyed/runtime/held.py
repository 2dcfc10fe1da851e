"""The partitions that a channel with state holds: which of them rest, and until when.

Those of one number are a task: one partition of each topic, which have their state together, rest
together and are whole once all of them are there. With one topic each partition is one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.core.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.core.records import Assignment
    from headrace.extensions.keyed.state import LayeredState
    from headrace.extensions.keyed.store import RocksStore

#: Seconds after which the offset of a quiet partition is stored again, and so its stream time:
#: brokers forget those of a group without members a while after the last commit, a week by default.
#: So the store is noted to be as new, too. The first time comes soon: the last one may be long ago.
REFRESH_INTERVAL, FIRST_REFRESH = 3600.0, 60.0


@dataclass(slots=True)
class HeldPartition:
    """Our partitions of one number, by topic; ``attempt`` counts their restores.

    Times are of the monotonic clock.
    """

    parts: dict[str, Assignment]
    is_restored: bool = False
    attempt: int = 0
    paused: set[str] = field(default_factory=set)
    last_batch: float = 0.0
    failures: int = 0
    not_before: float = 0.0
    refresh_at: float = 0.0

    @property
    def assignment(self) -> Assignment:
        """Return that of the first topic by name, by which it is restored."""
        return self.parts[min(self.parts)]

    @property
    def assignments(self) -> Sequence[Assignment]:
        """Return those of all its topics."""
        return list(self.parts.values())

    def has(self, assignment: Assignment) -> bool:
        """Return whether an assignment is one of its own."""
        return self.parts.get(assignment.partition.topic) is assignment

    def is_current(self) -> bool:
        """Return whether work for each of its partitions may still take effect."""
        return all(each.is_current() for each in self.parts.values())

    def may_tick(self, now: float) -> bool:
        """Return whether timers may fire without records."""
        return self.is_restored and not self.paused and now >= self.not_before


class HeldPartitions:
    """The partitions of a channel by their numbers. Any thread."""

    def __init__(self, state: LayeredState, store: RocksStore, topics: Sequence[str]) -> None:
        self._state = state
        self._store = store
        self._topics = topics
        self._guard = threading.Lock()
        self._held: dict[int, HeldPartition] = {}

    # --- one partition ----------------------------------------------------------------------

    def add(self, assignment: Assignment, now: float) -> bool:
        """Add a partition that was assigned, without its state; return whether all of its number
        are there.
        """
        topic, number = assignment.partition
        with self._guard:
            held = self._held.get(number)
            former = {} if held is None else held.parts
            parts = {**former, topic: assignment}
            self._held[number] = HeldPartition(
                parts,
                attempt=0 if held is None else held.attempt,
                last_batch=now,
                refresh_at=now + FIRST_REFRESH,
            )
            return len(parts) == len(self._topics)

    def missing(self, assignment: Assignment) -> list[TopicPartition]:
        """Return the partitions of the same number, other than this one, that are not held."""
        topic, number = assignment.partition
        with self._guard:
            held = self._held.get(number)
            there = {topic} if held is None else {topic, *held.parts}
        return [TopicPartition(each, number) for each in self._topics if each not in there]

    def remove(self, assignment: Assignment) -> tuple[Assignment, Sequence[Assignment]] | None:
        """Remove a partition, None where it is not held by this assignment.

        Return by which assignment it was restored, and what is left of its number, to rest.
        """
        topic, number = assignment.partition
        with self._guard:
            held = self._find_held(assignment)
            if held is None:
                return None
            first = held.assignment
            del held.parts[topic]
            held.paused.discard(topic)
            held.is_restored = False
            if not held.parts:
                del self._held[number]
            return first, held.assignments

    def _find_held(self, assignment: Assignment) -> HeldPartition | None:
        held = self._held.get(assignment.partition.partition)
        return held if held is not None and held.has(assignment) else None

    def rest(self, assignment: Assignment) -> int | None:
        """Keep a partition from being read until it is admitted; None if it is not held whole.

        Return the attempt that it is to be admitted by.
        """
        with self._guard:
            held = self._find_held(assignment)
            if held is None or len(held.parts) < len(self._topics):
                return None
            held.is_restored = False
            held.attempt += 1
            self._state.release(assignment.partition.partition)
            return held.attempt

    def is_attempt(self, assignment: Assignment, attempt: int) -> bool:
        """Return whether a partition is held, and came to rest by this attempt last."""
        with self._guard:
            held = self._find_held(assignment)
            return held is not None and held.attempt == attempt

    def admit(self, assignment: Assignment, attempt: int) -> bool | None:
        """Admit a partition whose state is restored, and return whether it goes on.

        None where it came to rest again, or is not held any more; False where there is state and no
        offset: nothing says then from which record on it would be reduced twice.
        """
        number = assignment.partition.partition
        with self._guard:
            held = self._find_held(assignment)
            if held is None or held.attempt != attempt:
                return None
            if self._state.progress(number).offset is None:
                has_rows = next(self._store.rows(number), None) is not None
                if has_rows:
                    return False
            held.is_restored = True
            self._state.admit(number)
        return True

    def note_batch(self, number: int, now: float) -> bool:
        """Record that a batch came; return whether the partition's state is restored."""
        with self._guard:
            held = self._held[number]
            held.last_batch = now
            held.refresh_at = now + REFRESH_INTERVAL
            return held.is_restored

    def set_paused(self, assignment: Assignment, *, paused: bool) -> None:
        """Record whether delivery of a partition is paused."""
        with self._guard:
            held = self._find_held(assignment)
            if held is not None and paused:
                held.paused.add(assignment.partition.topic)
            elif held is not None:
                held.paused.discard(assignment.partition.topic)

    def is_ours(self, number: int) -> bool:
        """Return whether a partition is held by an assignment that is current."""
        held = self.find(number)
        return held is not None and held.is_current()

    def parts_of(self, assignment: Assignment) -> Sequence[Assignment]:
        """Return all that is held of an assignment's number, if that is."""
        with self._guard:
            held = self._find_held(assignment)
            return () if held is None else held.assignments

    def find(self, number: int) -> HeldPartition | None:
        """Return a partition, None where it is not held."""
        with self._guard:
            return self._held.get(number)

    def topics_of(self, number: int) -> Mapping[str, str]:
        """Return the topics of a number, by what their offsets are stored under."""
        held = self.find(number)
        return {} if held is None else {e.identity: e.partition.topic for e in held.assignments}

    # --- several ----------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Return the numbers of all."""
        with self._guard:
            return list(self._held)

    def first_assignments(self) -> list[Assignment]:
        """Return one of each number, by which it is restored."""
        with self._guard:
            return [each.assignment for each in self._held.values()]

    def restored_assignments(self) -> list[Assignment]:
        """Return all of those whose state is there."""
        with self._guard:
            restored = [each for each in self._held.values() if each.is_restored]
            return [assignment for each in restored for assignment in each.assignments]

    def quiet_numbers(self, before: float) -> list[int]:
        """Return the numbers of those whose state is there and whose last batch came before."""
        with self._guard:
            return sorted(
                number
                for number, each in self._held.items()
                if each.is_restored and each.is_current() and each.last_batch < before
            )

    def that_may_tick(self, now: float) -> list[HeldPartition]:
        """Return those of which timers may fire without records."""
        with self._guard:
            return [each for each in self._held.values() if each.may_tick(now)]

    def take_quiet(self, now: float) -> list[HeldPartition]:
        """Return those whose offsets are to be stored again; they are quiet from now on, again."""
        with self._guard:
            quiet = [e for e in self._held.values() if e.is_restored and now >= e.refresh_at]
            for each in quiet:
                each.refresh_at = now + REFRESH_INTERVAL
        return quiet

    def refresh_soon(self, several: list[HeldPartition], now: float) -> None:
        """Schedule another try to store the offsets of partitions."""
        with self._guard:
            for each in several:
                each.refresh_at = now + FIRST_REFRESH
