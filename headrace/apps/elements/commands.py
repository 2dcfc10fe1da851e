"""The commands of applications of elements."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import yaml

from headrace import daemon
from headrace.apps.elements.adapter import SEND_TIMEOUT, AdapterApp
from headrace.apps.elements.daemon_config import AppNode, dead_letters, own_topics
from headrace.apps.elements.part_reducer import load_app
from headrace.apps.elements.plan import Wired, describe_finder
from headrace.config.show import escaped
from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError, HeadraceError, ImportPathError, StartError
from headrace.core.files import write_whole
from headrace.core.processes import default_state_dir
from headrace.core.user_text import describe_error
from headrace.extensions.keyed.topics import create_topic, open_by_key
from headrace.kafka import KafkaTopicCatalog, clients
from headrace.kafka.catalog import NewTopic
from headrace.kafka.errors import ProduceError
from headrace.kafka.topic_producer import TopicProducer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.apps.elements.adapter import EventProducer
    from headrace.apps.elements.app import App
    from headrace.apps.elements.plan import AppPlan

_FAILED, _UNUSABLE = 1, 2

#: Of adapters, as elements' outputs have it, and Java's clients.
PARTITIONER = {"partitioner": "murmur2_random"}

#: Seconds that the brokers have for each question, and for each topic.
_PATIENCE = 30.0


def app_of(path: str) -> App:
    """Return an application, whose modules may be in the current folder.

    Raises:
        ConfigError: it is no application.
        ImportPathError: it cannot be imported.
    """
    sys.path.insert(0, str(Path.cwd()))
    try:
        return load_app(path)
    except ValueError as error:
        raise ConfigError([str(error)]) from error


def node(app: str, plan: AppPlan, brokers: str, state_dir: Path | None, **given: Any) -> AppNode:
    """Return the process that a command line describes; the current folder has its modules."""
    folder = state_dir or default_state_dir(os.environ) / plan.name
    return AppNode(app, plan, brokers, folder, python_path=(str(Path.cwd()),), **given)


def run(
    app: str,
    brokers: str,
    name: str | None,
    state_dir: Path | None,
    create: int | None,
    *,
    print_only: bool,
    **given: Any,
) -> int:
    """Run an application until a signal, or print its configuration. Blocks.

    On the main thread, as ``headrace run``. ``create``: the partitions of topics that are not
    there; None leaves them out.
    """
    try:
        found = app_of(app)
        if isinstance(found, AdapterApp):
            return adapt(found, brokers, given.get("properties", {}), create, print_only=print_only)
        chosen = node(app, found.plan(name), brokers, state_dir, **given)
        text = yaml.safe_dump(escaped(chosen.configuration()), sort_keys=False, allow_unicode=True)
        if print_only:
            typer.echo(text, nl=False)
            return 0
        open_topics(clients.properties_of(chosen.brokers, chosen.properties), chosen.plan, create)
        file = chosen.folder / "elements.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text)
    except (ConfigError, ImportPathError) as error:
        typer.echo(str(error), err=True)
        return daemon.ExitCode.CONFIG
    except (HeadraceError, OSError) as error:
        typer.echo(str(error), err=True)
        return daemon.ExitCode.NOT_STARTED
    typer.echo(f"see what it does with: headrace status -c {file}", err=True)
    return daemon.run(file)


def adapt(
    adapter: AdapterApp,
    brokers: str,
    properties: Mapping[str, str],
    create: int | None,
    *,
    print_only: bool,
) -> int:
    """Run an adapter until it ends or is interrupted, and return the exit code. Blocks.

    That is 0 only if all that was put is stored.

    Raises:
        ConfigError: it has no remote stream, or no configuration that could be printed.
        HeadraceError: the brokers do not answer.
    """
    stream = adapter.remote_stream()
    if print_only:
        raise ConfigError([
            f"adapter {type(adapter).__name__} is no channel, so there is no configuration to print"
        ])  # fmt: skip
    client = clients.properties_of(brokers, properties)
    _open_remote(client, stream.topic, create)
    typer.echo(_adapter_text(adapter), err=True)
    producer = _WholeFlush(TopicProducer({**client, **PARTITIONER}, stream.topic))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        count = _run_until_signal(adapter, producer)
    except ProduceError as error:
        typer.echo(str(error), err=True)
        return _FAILED
    except (HeadraceError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a user's code raises
        typer.echo(
            f"on_start of {type(adapter).__name__} failed: {describe_error(error)}", err=True
        )
        return _FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
    typer.echo(f"{count} events put to {stream.topic}", err=True)
    return 0


def _run_until_signal(adapter: AdapterApp, producer: EventProducer) -> int:
    """Run an adapter, and return how many events were stored. Blocks."""
    try:
        return adapter.run(producer)
    except KeyboardInterrupt:
        # the signal may have come right before the flush
        producer.flush(Deadline.after(SEND_TIMEOUT))
        return producer.sent


class _WholeFlush:
    """A producer whose flush no signal ends: the process ends after it in any case."""

    def __init__(self, producer: EventProducer) -> None:
        self._producer = producer

    @property
    def sent(self) -> int:
        return self._producer.sent

    def send(
        self, records: Iterable[tuple[bytes | None, bytes]], deadline: Deadline, *, time: int
    ) -> None:
        self._producer.send(records, deadline, time=time)

    def flush(self, deadline: Deadline) -> None:
        ends = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(each, signal.SIG_IGN) for each in ends]
        try:
            self._producer.flush(deadline)
        finally:
            for each, handler in zip(ends, before, strict=True):
                signal.signal(each, handler)


def _adapter_text(adapter: AdapterApp) -> str:
    stream = adapter.remote_stream()
    key = describe_finder(stream.stream.key)
    return f"adapter {type(adapter).__name__} puts {stream.name} by {key} to {stream.topic}"


def _open_remote(client: Mapping[str, Any], topic: str, create: int | None) -> None:
    """Create the topic of a remote stream if it is missing; None: refuse. Blocks."""
    with closing(KafkaTopicCatalog(client, topic)) as catalog:
        if topic in catalog.describe([topic], Deadline.after(_PATIENCE)):
            return
        if create is None:
            raise StartError(
                f"topic {topic} does not exist, which the adapter puts events to; create it, or "
                "run with --create"
            )
        create_topic(catalog, NewTopic(topic, create), Deadline.after(_PATIENCE))
        typer.echo(f"created topic {topic} with {create} partitions", err=True)


def show(app: str, name: str | None, *, mermaid: bool, as_json: bool) -> int:
    """Draw an application, and return the exit code."""
    try:
        found = app_of(app)
        if isinstance(found, AdapterApp):
            typer.echo(_adapter_text(found))
            return 0
        plan = found.plan(name)
    except (ConfigError, ImportPathError) as error:
        typer.echo(str(error), err=True)
        return _UNUSABLE
    if as_json:
        typer.echo(json.dumps(plan.document(), ensure_ascii=False, indent=2))
    elif mermaid:
        typer.echo(plan.mermaid())
    else:
        typer.echo("\n".join(plan.lines()))
    return 0


def open_topics(client: Mapping[str, Any], plan: AppPlan, create: int | None) -> None:
    """Create the topics that are missing, with ``create`` partitions; None: name them. Blocks.

    Topics between elements have as many as inputs have that are read with them.

    Raises:
        KafkaUnavailableError: the brokers do not answer.
        StartError: a topic is missing, or they refuse to create it.
    """
    own = own_topics(plan)
    outside = {*plan.outside_topics(Wired.INPUT), *plan.outside_topics(Wired.OUTPUT)}
    letters = dead_letters(plan.name)
    with closing(KafkaTopicCatalog(client, plan.name)) as catalog:
        names = sorted({*own, *outside, letters})
        there = dict(catalog.describe(names, Deadline.after(_PATIENCE)))
        missing = [each for each in names if each not in there]
        if create is None:
            if missing:
                raise StartError(
                    f"topic {missing[0]} does not exist, which application {plan.name} has; create "
                    f"it, or run with --create, which creates all that are missing: {len(missing)}"
                )
            return
        inputs = plan.outside_topics(Wired.INPUT)
        # inputs first: others have as many partitions, and as large records
        for each in sorted(missing, key=lambda name: name in own):
            counts = [there[other].partitions for other in own.get(each, ())]
            count = 1 if each == letters else max(counts, default=create)
            deadline = Deadline.after(_PATIENCE)
            if each in own:
                open_by_key(catalog, each, inputs, deadline, partitions=count)
            else:
                there[each] = create_topic(catalog, NewTopic(each, count), deadline)
            typer.echo(f"created topic {each} with {count} partitions", err=True)
