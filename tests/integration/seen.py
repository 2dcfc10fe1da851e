"""An operator's view of a fault: events in the log, and values of metrics."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from tests.integration.channel.rig import CHANNEL, WAIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from headrace.controller.controller import KafkaController


class Log:
    """Events as they come in; ``entries`` gives all so far."""

    def __init__(self, entries: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        self._entries = entries

    def of(self, event: str) -> list[Mapping[str, Any]]:
        """Return what was logged of one kind."""
        return [entry for entry in list(self._entries()) if entry["event"] == event]

    def has(self, event: str, **fields: object) -> bool:
        """Whether an event was logged with all these fields."""
        wanted = {"event": event, **fields}
        return any(wanted == {key: entry.get(key) for key in wanted} for entry in self.of(event))

    def expect(self, event: str, **fields: object) -> None:
        """Wait until an event was logged with all these fields."""
        found = wait_for(lambda: self.has(event, **fields), Deadline.after(WAIT))
        assert found, f"no {event} with {fields}, only {self.of(event)}"

    def says(self, *events: str) -> None:
        """Wait until the channel has logged each of the events."""
        for event in events:
            self.expect(event, channel=CHANNEL)


@contextmanager
def recorded() -> Iterator[Log]:
    """Give what is logged in this process meanwhile."""
    with capture_logs() as entries:
        yield Log(lambda: entries)


def log_in(file: Path) -> Log:
    """Return what another process writes as JSON lines; what is no event is skipped."""

    def entries() -> list[dict[str, Any]]:
        lines = file.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"') and line[-1] == "}"]

    return Log(entries)


def metric(controller: KafkaController, name: str, **labels: object) -> float | None:
    """Return the value of a channel's metric at this moment; None if there is none."""
    of = {"channel": CHANNEL, **{key: str(value) for key, value in labels.items()}}
    return controller.metrics.registry.get_sample_value(f"headrace_{name}", of)


def suspended(controller: KafkaController) -> int:
    """Return how many partitions a controller's metrics show as suspended."""
    return int(metric(controller, "partitions", state="suspended") or 0)
