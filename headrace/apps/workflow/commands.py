"""The commands of the workflow executor."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import yaml

from headrace import daemon
from headrace.apps.workflow.base_executor import cancel_events, result_of, signal_events
from headrace.apps.workflow.daemon_config import NodeRole, WorkflowNode
from headrace.apps.workflow.definitions import load_workflows
from headrace.apps.workflow.errors import DefinitionError, NoOutcomeError
from headrace.apps.workflow.event_producer import EventProducer
from headrace.apps.workflow.executor import Executor, find_outcome
from headrace.apps.workflow.instances import (
    Found,
    find_state,
    read_instances,
    select_instances,
    select_unfinished,
)
from headrace.apps.workflow.selection import Selection
from headrace.apps.workflow.term_tree import drawn
from headrace.apps.workflow.topics import (
    Topics,
    create_topics,
)
from headrace.config.models.root import LoggingConfig
from headrace.config.show import escaped
from headrace.core.errors import ConfigError, HeadraceError, ImportPathError
from headrace.core.files import write_whole
from headrace.core.processes import default_state_dir, who
from headrace.kafka.clients import properties_of
from headrace.ops.console import Column, duration, numeric, print_table
from headrace.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
        found: dict[str, Any] = properties_of(self.brokers, self.properties)
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
        client = properties_of(node.brokers, node.properties)
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

    def work() -> None:
        place.client()
        flows = load_workflows(workflows)
        flows.compiled(definition).require(args)
        with Executor(
            flows, place.brokers, topics=place.topics, properties=place.properties
        ) as executor:
            typer.echo(executor.start(definition, args, instance=instance))

    return _exit_code(work)


def result(place: Place, instance: str, timeout: float) -> int:
    """Wait for an instance's result, print it, and return the exit code. Blocks."""

    def work() -> None:
        outcome = find_outcome(place.client(), place.topics, instance, timeout)
        typer.echo(json.dumps(result_of(outcome), ensure_ascii=False))

    return _exit_code(work)


def show(place: Place, instance: str) -> int:
    """Draw an instance, and return the exit code. Blocks."""

    def work() -> None:
        client = place.client()
        state = find_state(client, place.topics, instance)
        if state is not None:
            typer.echo("\n".join(drawn(instance, state)))
            return
        try:
            outcome = find_outcome(client, place.topics, instance, 0)
        except NoOutcomeError:
            text = f"there is no instance {instance!r} in {place.topics.events}"
            raise NoOutcomeError(text) from None
        typer.echo(json.dumps(outcome, ensure_ascii=False, indent=2))

    return _exit_code(work)


def status(place: Place, *, oldest: int, timeout: float, as_json: bool) -> int:
    """Print how many instances there are by phase, and return the exit code. Blocks."""

    def work() -> None:
        found = read_instances(place.client(), place.topics, timeout)
        if as_json:
            typer.echo(json.dumps(found.document(oldest), ensure_ascii=False))
        else:
            typer.echo("\n".join(found.lines(oldest, time.time())))

    return _exit_code(work)


def list_instances(place: Place, selection: Selection, *, timeout: float, as_json: bool) -> int:
    """Print the instances of a selection, the oldest first; return the exit code. Blocks."""

    def work() -> None:
        now = time.time()
        found = select_instances(place.client(), place.topics, selection, now, timeout)
        if as_json:
            for each in found:
                typer.echo(json.dumps(each.document(), ensure_ascii=False))
        else:
            print_table(found, _columns(now), empty="no instance is like that")

    return _exit_code(work)


def _columns(now: float) -> tuple[Column[Found], ...]:
    return (
        Column("instance", lambda each: each.instance),
        Column("workflow", lambda each: each.definition),
        Column("phase", lambda each: each.phase),
        numeric("started ago", lambda each: duration(max(0.0, now - each.started / 1000))),
        Column("args", lambda each: _compact(each.args)),
    )


def _compact(args: object) -> str:
    return "" if args is None else json.dumps(args, ensure_ascii=False, separators=(",", ":"))


def signal(place: Place, instance: str, name: str, value: Any, signal_id: str | None) -> int:
    """Send a signal to an instance, and return the exit code. Blocks."""

    def work() -> None:
        events = signal_events(instance, name, value, signal_id)
        EventProducer(place.client(), place.topics).send(events)

    return _exit_code(work)


def cancel(
    place: Place,
    instances: Sequence[str] | Selection,
    reason: str,
    *,
    timeout: float,
    terminate: bool,
) -> int:
    """Cancel instances by their ids, or all of a selection; return the exit code. Blocks.

    Prints the ids of those that were asked to end.
    """

    def work() -> None:
        client, chosen = place.client(), instances
        if isinstance(chosen, Selection):
            chosen = select_unfinished(client, place.topics, chosen, time.time(), timeout)
        events = cancel_events(chosen, reason, who(), terminate=terminate)
        EventProducer(client, place.topics).send(events)
        for instance, _ in events:
            typer.echo(instance)

    return _exit_code(work)


def _exit_code(work: Callable[[], None]) -> int:
    """Run what a command is for; return its exit code, once its error is printed."""
    try:
        work()
    except (ConfigError, DefinitionError, ImportPathError) as error:
        code, said = _UNUSABLE, str(error)
    except NoOutcomeError as error:
        code, said = _NO_OUTCOME, str(error)
    except HeadraceError as error:
        code, said = _FAILED, str(error)
    except KeyboardInterrupt:
        return _NO_OUTCOME
    else:
        return 0
    typer.echo(said, err=True)
    return code
