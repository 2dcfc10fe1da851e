"""All instances that are remembered, as their states were last committed, and some of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.apps.workflow.errors import NoOutcomeError
from headrace.apps.workflow.reducer import WorkflowReducer, phase_of
from headrace.apps.workflow.selection import FINISHED, Selection
from headrace.apps.workflow.topics import (
    ANSWER_TIMEOUT,
    FETCH_TIMEOUT,
    TopicReader,
    Topics,
    document_of,
)
from headrace.core.clock import Deadline
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.phases import named, summed
from headrace.kafka.errors import UnknownTopicError
from headrace.ops.console import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.keyed import Phase

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """One instance of a selection. ``started`` is in ms, ``args`` are None once it is over."""

    instance: str
    definition: str
    phase: str
    started: int
    args: Any

    def document(self) -> dict[str, Any]:
        """Return it for scripts."""
        return {
            "instance": self.instance,
            "definition": self.definition,
            "phase": self.phase,
            "started": self.started,
            "args": self.args,
        }


def select_unfinished(
    client: Mapping[str, Any], topics: Topics, selection: Selection, now: float, timeout: float
) -> list[str]:
    """Return the ids of those of a selection's instances that have no outcome yet.

    The selection's limit is of these; otherwise as :func:`select_instances`.
    """
    found = select_instances(client, topics, replace(selection, limit=None), now, timeout)
    left = [each.instance for each in found if each.phase not in FINISHED]
    return left[: selection.limit]


def select_instances(
    client: Mapping[str, Any], topics: Topics, selection: Selection, now: float, timeout: float
) -> list[Found]:
    """Return the instances of a selection, those that were started first in front. Blocks.

    ``now`` (seconds since the epoch) is what their ages are measured by.

    Raises:
        UnknownTopicError, KafkaUnavailableError: no reducer has run, or no broker answers.
        NoOutcomeError: the changelog could not be read to its end within ``timeout`` seconds.
    """

    def of(instance: str, state: dict[str, Any]) -> Found | None:
        if not selection.takes(state, now):
            return None
        return Found(
            instance, state["definition"], phase_of(state).name, state["started"], state["args"]
        )

    found = _read_states(client, topics, timeout, of).values()
    taken = [each for each in found if each is not None]
    taken.sort(key=lambda each: (each.started, each.instance))
    return taken[: selection.limit]


@dataclass(frozen=True, slots=True)
class Instances:
    """All instances that are remembered, as their states were last committed."""

    states: Mapping[str, Phase]

    def document(self, oldest: int) -> dict[str, Any]:
        """Return them in numbers, with so many of those that have been open for longest."""
        declared = WorkflowReducer.phases
        phases = Counter(phase.name for phase in self.states.values())
        amounts: list[int] = []
        counts: list[int] = []
        for phase in self.states.values():
            amounts = summed(amounts, phase.amounts)
            counts = summed(counts, phase.counts)
        opened = [
            (phase.since, instance, phase.name)
            for instance, phase in self.states.items()
            if phase.since is not None
        ]
        return {
            "phases": {name: phases[name] for name in declared.names},
            "amounts": named(declared.amounts, amounts),
            "counts": named(declared.counts, counts),
            "oldest": [
                {"instance": instance, "phase": name, "started": since}
                for since, instance, name in nsmallest(oldest, opened)
            ],
        }

    def lines(self, oldest: int, now: float) -> list[str]:
        """Return the same as text. ``now`` is in seconds."""
        found = self.document(oldest)
        lines = [f"instances: {_numbers(found['phases'])}", _numbers(found["amounts"])]
        lines.append(_numbers(found["counts"]))
        for each in found["oldest"]:
            age = duration(max(0.0, now - each["started"] / 1000))
            lines.append(f"{each['instance']}  {each['phase']} for {age}")
        return lines


def _numbers(numbers: Mapping[str, int]) -> str:
    return " · ".join(f"{name.replace('_', ' ')} {number}" for name, number in numbers.items())


def read_instances(client: Mapping[str, Any], topics: Topics, timeout: float) -> Instances:
    """Return the instances that the changelog has. Blocks.

    Raises:
        UnknownTopicError, KafkaUnavailableError: no reducer has run, or no broker answers.
        NoOutcomeError: the changelog could not be read to its end within ``timeout`` seconds.
    """
    return Instances(_read_states(client, topics, timeout, lambda _, state: phase_of(state)))


def _read_states(
    client: Mapping[str, Any],
    topics: Topics,
    timeout: float,
    of: Callable[[str, dict[str, Any]], T],
) -> dict[str, T]:
    """Return what each state that the changelog has comes to, by instance."""
    found: dict[str, T] = {}
    deadline = Deadline.after(timeout)
    with _changelog(client, topics) as reader:
        while not reader.is_at_end:
            if deadline.expired:
                raise NoOutcomeError(
                    f"the instances in {changelog_name(topics.name, topics.events)} were not all "
                    f"read after {timeout:g} s; allow more with --timeout"
                )
            for record in reader.fetch(FETCH_TIMEOUT):
                instance = (record.key() or b"").decode("utf-8", "replace")
                state = document_of(record)
                if state is None:
                    found.pop(instance, None)
                else:
                    found[instance] = of(instance, state)
    return found


def find_state(client: Mapping[str, Any], topics: Topics, instance: str) -> dict[str, Any] | None:
    """Return an instance's state as it was last committed, None if it has none. Blocks.

    Raises:
        UnknownTopicError, KafkaUnavailableError: no reducer has run, or not all could be read.
    """
    key = instance.encode()
    deadline, state = Deadline.after(ANSWER_TIMEOUT), None
    with _changelog(client, topics, key) as reader:
        while not reader.is_at_end:
            if deadline.expired:
                raise reader.unread(ANSWER_TIMEOUT)
            for record in reader.fetch(FETCH_TIMEOUT):
                if record.key() == key:
                    state = document_of(record)
    return state


def _changelog(client: Mapping[str, Any], topics: Topics, key: bytes | None = None) -> TopicReader:
    """Return a reader of the instances' states, of all or of the partition of one."""
    name = changelog_name(topics.name, topics.events)
    try:
        return TopicReader(client, name, from_beginning=True, key=key)
    except UnknownTopicError as error:
        raise UnknownTopicError(f"{error}: has a reducer run with --name {topics.name}?") from None
