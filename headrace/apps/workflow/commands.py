"""The commands of the workflow executor."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import yaml

from headrace import daemon
from headrace.apps.workflow.daemon_config import NodeRole, WorkflowNode
from headrace.apps.workflow.definitions import load_workflows
from headrace.apps.workflow.errors import DefinitionError, NoOutcomeError
from headrace.apps.workflow.executor import Executor, find_outcome, result_of
from headrace.apps.workflow.reducer import WorkflowReducer, phase_of
from headrace.apps.workflow.term_tree import drawn
from headrace.apps.workflow.topics import (
    ANSWER_TIMEOUT,
    FETCH_TIMEOUT,
    TopicReader,
    Topics,
    client_of,
    create_topics,
    document_of,
)
from headrace.config.models.root import LoggingConfig
from headrace.config.show import escaped
from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError, HeadraceError, ImportPathError
from headrace.core.files import write_whole
from headrace.core.processes import default_state_dir
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.phases import named, summed
from headrace.kafka.errors import UnknownTopicError
from headrace.ops.console import duration
from headrace.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.keyed import Phase

_FAILED, _UNUSABLE, _NO_OUTCOME = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Place:
    """The location of an executor's topics, as a command line gives it."""

    brokers: str
    name: str
    properties: Mapping[str, str]

    @property
    def topics(self) -> Topics:
        """Return the topics."""
        return Topics(self.name)

    def client(self) -> dict[str, Any]:
        """Return the properties of clients, whose warnings go to standard error from here on.

        Raises:
            ConfigError: an address or a property cannot be used.
        """
        configure_logging(LoggingConfig(level="warning"))
        found: dict[str, Any] = client_of(self.brokers, self.properties)
        return found


def node(
    workflows: str, brokers: str, name: str, state_dir: Path | None, *, role: str, **given: Any
) -> WorkflowNode:
    """Return the process that a command line describes; the current folder has its modules."""
    folder = state_dir or default_state_dir(os.environ) / f"{name}-{role}"
    here = (str(Path.cwd()),)
    topics = Topics(name)
    return WorkflowNode(
        workflows, brokers, topics, folder, role=NodeRole(role), python_path=here, **given
    )


def run(node: WorkflowNode, *, create: int | None, print_only: bool) -> int:
    """Run a process for workflows until a signal, or print its configuration. Blocks.

    On the main thread, as ``headrace run``. ``create``: the partitions of topics that are not
    there; None leaves them out.
    """
    text = yaml.safe_dump(escaped(node.configuration()), sort_keys=False, allow_unicode=True)
    if print_only:
        typer.echo(text, nl=False)
        return 0
    sys.path[:0] = node.python_path
    try:
        load_workflows(node.workflows).check()
        client = client_of(node.brokers, node.properties)
        if create is not None:
            made = create_topics(
                client,
                node.topics,
                partitions=create,
                assignments=create,
                history=node.history,
            )
            for name in made:
                typer.echo(f"created topic {name} with {create} partitions", err=True)
        file = node.folder / "workflow.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text)
    except (ConfigError, DefinitionError, ImportPathError) as error:
        typer.echo(str(error), err=True)
        return daemon.ExitCode.CONFIG
    except (HeadraceError, OSError) as error:
        typer.echo(str(error), err=True)
        return daemon.ExitCode.NOT_STARTED
    typer.echo(f"see what it does with: headrace status -c {file}", err=True)
    return daemon.run(file)


def start(
    place: Place, workflows: str, definition: str, args: Mapping[str, Any], instance: str | None
) -> int:
    """Start an instance, print its id, and return the exit code. Blocks."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        place.client()
        flows = load_workflows(workflows)
        flows.compiled(definition).require(args)
        with Executor(
            flows, place.brokers, topics=place.topics, properties=place.properties
        ) as executor:
            typer.echo(executor.start(definition, args, instance=instance))
    except (ConfigError, DefinitionError, ImportPathError) as error:
        typer.echo(str(error), err=True)
        return _UNUSABLE
    except HeadraceError as error:
        typer.echo(str(error), err=True)
        return _FAILED
    return 0


def result(place: Place, instance: str, timeout: float) -> int:
    """Wait for an instance's result, print it, and return the exit code. Blocks."""
    try:
        outcome = find_outcome(place.client(), place.topics, instance, timeout)
        typer.echo(json.dumps(result_of(outcome), ensure_ascii=False))
    except NoOutcomeError as error:
        typer.echo(str(error), err=True)
        return _NO_OUTCOME
    except ConfigError as error:
        typer.echo(str(error), err=True)
        return _UNUSABLE
    except HeadraceError as error:
        typer.echo(str(error), err=True)
        return _FAILED
    except KeyboardInterrupt:
        return _NO_OUTCOME
    return 0


def show(place: Place, instance: str) -> int:
    """Draw an instance, and return the exit code. Blocks."""
    try:
        client = place.client()
        state = find_state(client, place.topics, instance)
        if state is not None:
            typer.echo("\n".join(drawn(instance, state)))
            return 0
        outcome = find_outcome(client, place.topics, instance, 0)
        typer.echo(json.dumps(outcome, ensure_ascii=False, indent=2))
    except NoOutcomeError:
        typer.echo(f"there is no instance {instance!r} in {place.topics.events}", err=True)
        return _NO_OUTCOME
    except ConfigError as error:
        typer.echo(str(error), err=True)
        return _UNUSABLE
    except HeadraceError as error:
        typer.echo(str(error), err=True)
        return _FAILED
    return 0


def status(place: Place, *, oldest: int, timeout: float, as_json: bool) -> int:
    """Print how many instances there are by phase, and return the exit code. Blocks."""
    try:
        found = read_instances(place.client(), place.topics, timeout)
    except NoOutcomeError as error:
        typer.echo(str(error), err=True)
        return _NO_OUTCOME
    except ConfigError as error:
        typer.echo(str(error), err=True)
        return _UNUSABLE
    except HeadraceError as error:
        typer.echo(str(error), err=True)
        return _FAILED
    if as_json:
        typer.echo(json.dumps(found.document(oldest), ensure_ascii=False))
    else:
        typer.echo("\n".join(found.lines(oldest, time.time())))
    return 0


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
    states: dict[str, Phase] = {}
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
                    states.pop(instance, None)
                else:
                    states[instance] = phase_of(state)
    return Instances(states)


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
