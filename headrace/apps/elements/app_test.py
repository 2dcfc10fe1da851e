"""Applications without Kafka: events and time by hand, through all parts in turn."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.apps.elements.element import SAME_KEY
from headrace.apps.elements.part_reducer import PartReducer
from headrace.apps.elements.plan import Wired
from headrace.extensions.keyed.settings import FoldSettings
from headrace.testing.keyed import KeyedTest, Sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.apps.elements.app import App
    from headrace.apps.elements.plan import AppPlan
    from headrace.testing.keyed import Produced


class Emitted(NamedTuple):
    """An event of an output stream. ``ts`` is in milliseconds."""

    stream: str
    key: str | bytes | None
    value: Any
    ts: int


class AppTest:
    """Runs an application on events that a test sends, with one partition a topic. One thread.

    ``hops`` counts by stream what went through a topic of the application's own.

    Raises:
        ConfigError: the application does not fit together.
    """

    def __init__(self, app: App, name: str | None = None) -> None:
        self.plan: AppPlan = app.plan(name)
        self._parts: dict[str, KeyedTest] = {}
        for part in self.plan.parts:
            reducer = PartReducer(self.plan, part)
            settings = FoldSettings(outputs=reducer.outputs)
            self._parts[part.name] = KeyedTest(reducer, settings, part.key)
        #: All events of output streams so far, in their order.
        self.outputs: list[Emitted] = []
        self.hops: dict[str, int] = {}

    def send(
        self, stream: str, *values: Any, ts: int = 0, key: Any = None, now: int | None = None
    ) -> list[Emitted]:
        """Send values to an input stream, as one micro-batch; return what comes out of it all.

        ``ts`` is their time, ``now`` the wall clock, in ms; ``key`` that of the records.

        Raises:
            PoisonRecordError: an element raised, or a value has no key.
            ValueError: there is no input stream of this name.
        """
        found = self.plan.streams.get(stream)
        if found is None or found.wired is not Wired.INPUT:
            there = (n for n, each in self.plan.streams.items() if each.wired is Wired.INPUT)
            raise ValueError(f"there is no input stream {stream!r}; there are {', '.join(there)}")
        finder = found.stream.key
        has_finder = finder is not None and finder is not SAME_KEY
        facts = [Sent(found.stream.key_of(v) if has_finder else key, v, ts) for v in values]
        return self._run(deque([(stream, facts)]), now)

    def tick(self, now: int) -> list[Emitted]:
        """Fire timers of the wall clock that are due at ``now`` (ms); return what comes of it."""
        before = len(self.outputs)
        for part in self.plan.parts:
            waiting = self._produced(self._parts[part.name].tick(now))
            self._run(waiting, now)
        return self.outputs[before:]

    def state(self, element: str, key: Any) -> Any:
        """Return the state of an element's instance, None where there is none."""
        part = next(each for each in self.plan.parts if element in each.elements)
        found = self._parts[part.name].state(key)
        return None if found is None else found.get(element)

    def _run(self, waiting: deque[tuple[str, list[Sent]]], now: int | None) -> list[Emitted]:
        before = len(self.outputs)
        while waiting:
            stream, facts = waiting.popleft()
            for part in self.plan.parts:
                if stream in part.topics:
                    test = self._parts[part.name]
                    test.topic = part.topics[stream]
                    waiting += self._produced(test.send(*facts, now=now))
        return self.outputs[before:]

    def _produced(self, records: Sequence[Produced]) -> deque[tuple[str, list[Sent]]]:
        """Keep what is an output, and return the rest as it is to be sent on, stream by stream."""
        waiting: deque[tuple[str, list[Sent]]] = deque()
        for record in records:
            if self.plan.streams[record.to].wired is Wired.OUTPUT:
                self.outputs.append(Emitted(record.to, record.key, record.value, record.ts))
                continue
            self.hops[record.to] = self.hops.get(record.to, 0) + 1
            if not waiting or waiting[-1][0] != record.to:
                waiting.append((record.to, []))
            waiting[-1][1].append(
                Sent(_as_sent(record.key), record.value, record.ts, record.headers)
            )
        return waiting


def _as_sent(key: str | bytes | None) -> bytes | None:
    """Return a record's key in bytes, which are not written as a key once more."""
    return key.encode() if isinstance(key, str) else key
