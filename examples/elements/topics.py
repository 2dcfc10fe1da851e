"""The element that S4 is known by, on its own: daemons import it, and Spark's workers get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from headrace.apps.elements.element import Element, Stream

if TYPE_CHECKING:
    from headrace.keyed import Event


@dataclass
class TopicCountAndReport(Element):
    """Counts the events of a topic, and the miles in them; reports both.

    By a trigger, as each so many events were seen; and in an interval, whether there were any or
    not. A report says in ``by`` which of the two it is.
    """

    reports = Stream("out", key="topic")

    count: int = 0
    miles: int = 0

    @override
    def on_event(self, event: Event[Any]) -> None:
        self.count += 1
        self.miles += event.value["miles"]

    @override
    def on_trigger(self) -> None:
        self._report("count")

    @override
    def on_time(self) -> None:
        self._report("time")

    def _report(self, by: str) -> None:
        report = {"topic": self.key, "by": by, "count": self.count, "miles": self.miles}
        self.emit(self.reports, report)
