"""``headrace collector run``: the configuration of a collector, made of its command line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
import yaml
from pydantic import ValidationError

from headrace import daemon
from headrace.config import Config
from headrace.config.errors import Origin, printable
from headrace.config.problems import problems
from headrace.config.show import escaped
from headrace.controller.preflight import preflight
from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError, HeadraceError, StartError
from headrace.core.files import write_whole
from headrace.core.processes import default_state_dir
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.catalog import NewTopic
from headrace.kafka.clients import client_properties
from headrace.zookeeper.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace.config.errors import Steps

#: The channel's name in the configuration.
CHANNEL = "collector"

#: Seconds in which the brokers have to say which topics there are, and to create the others.
_TOPICS_TIMEOUT = 30.0

#: The times of events are the brokers', which no producer's clock can move.
_EVENT_SETTINGS = {"message.timestamp.type": "LogAppendTime"}

#: What the parts of the configuration are called on the command line.
_OPTIONS: Mapping[Steps, str] = {
    ("kafka", "bootstrap_servers"): "--brokerlist",
    ("kafka", "properties"): "--property",
    ("zookeeper", "hosts"): "--zookeeper",
    ("state_dir",): "--state-dir",
    ("channels", CHANNEL, "topics"): "--event-topic",
    ("channels", CHANNEL, "group"): "--group",
    ("channels", CHANNEL, "sink", "outputs", "rejected"): "--rejected-topic",
    ("channels", CHANNEL, "rejects", "topic"): "--dead-letter-topic",
    ("channels", CHANNEL, "sink"): "--outcome-topic",
}


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """The options of a collector, from a command line.

    ``state_dir`` None: the user's own folder for such data. ``create``: the partitions of topics
    that are not there; None: they have to be there.
    """

    brokers: str
    events: str
    outcomes: str
    rejected: str | None = None
    dead_letters: str | None = None
    zookeeper: str = "localhost:2181"
    mode: str = "strict"
    engine: str = "spark"
    group: str = "collector"
    state_dir: Path | None = None
    create: int | None = None
    properties: Mapping[str, str] | None = None

    @property
    def folder(self) -> Path:
        """Return where the configuration lies, and what outlives the process."""
        return self.state_dir or default_state_dir(os.environ) / "collector"

    @property
    def file(self) -> Path:
        """Return the configuration. The process is named after it, so it stays the same."""
        return self.folder / "collector.yaml"

    @property
    def topics(self) -> Sequence[NewTopic]:
        """Return the topics that are read and written, as they would be created."""
        others = (self.rejected, self.dead_letters)
        written = {self.outcomes, *(each for each in others if each is not None)}
        count = self.create or 0
        return [
            NewTopic(self.events, count, _EVENT_SETTINGS),
            *(NewTopic(name, count) for name in sorted(written - {self.events})),
        ]


def configuration(wanted: CollectorOptions) -> dict[str, Any]:
    """Return the configuration of a process with a collector."""
    options = {"mode": wanted.mode}
    sink: dict[str, Any] = {"type": "kafka", "topic": wanted.outcomes}
    if wanted.outcomes == wanted.events:
        sink["loop"] = True
    if wanted.rejected is not None:
        options |= {"outcomes": "outcomes", "rejected": "rejected"}
        rejected = {"type": "kafka", "topic": wanted.rejected}
        sink = {"type": "several", "outputs": {"outcomes": sink, "rejected": rejected}}
    letters: dict[str, Any] = {}
    if wanted.dead_letters is not None:
        letters["rejects"] = {"failing": "dead_letter", "topic": wanted.dead_letters}
    properties = {"properties": dict(wanted.properties)} if wanted.properties else {}
    return {
        "state_dir": str(wanted.folder),
        "kafka": {"bootstrap_servers": wanted.brokers, **properties},
        "zookeeper": {"hosts": wanted.zookeeper},
        "channels": {
            CHANNEL: {
                "topics": [wanted.events],
                "group": wanted.group,
                "processor": {
                    "type": "keyed",
                    "factory": "headrace.apps.collector:Collector",
                    "options": options,
                    "key": "headrace.apps.collector:group_of",
                    "value": "bytes",
                    "engine": wanted.engine,
                    "idle": "1s",
                },
                "sink": sink,
                **letters,
            }
        },
    }


def written(document: Mapping[str, Any]) -> str:
    """Return a configuration as YAML, in which nothing refers to variables or files."""
    return yaml.safe_dump(escaped(dict(document)), sort_keys=False, allow_unicode=True)


def checked(document: Mapping[str, Any], file: Path) -> Config:
    """Return the configuration with all defaults, as it is read from a file.

    Raises:
        ConfigError: the problems, each with the option that it is in.
    """
    try:
        config = Config.model_validate(document, context=Origin.of(file))
        found = list(preflight(config))
    except ValidationError as error:
        found = list(problems(error, Config))
    if found:
        raise ConfigError(
            [f"{_option(steps)} {printable(sentence)}" for steps, sentence in found]
        ) from None
    return config


def _option(steps: Steps) -> str:
    """Return the option that a place in the configuration is made of."""
    for place, option in _OPTIONS.items():
        if steps[: len(place)] == place:
            rest = [str(each) for each in steps[len(place) :] if place == ("kafka", "properties")]
            return " ".join([option, *rest])
    return ".".join(map(str, steps))


def run(wanted: CollectorOptions, *, print_only: bool) -> int:
    """Run a collector until a signal, or print its configuration; return the exit code. Blocks.

    On the main thread, as ``headrace run``.
    """
    document = configuration(wanted)
    try:
        config = checked(document, wanted.file)
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(problem, err=True)
        return daemon.ExitCode.CONFIG
    if print_only:
        typer.echo(written(document), nl=False)
        return daemon.ExitCode.STOPPED
    try:
        prepare_topics(wanted, client_properties(config.kafka))
        write(wanted, config.instance_id, written(document))
    except HeadraceError as error:
        typer.echo(str(error), err=True)
        return daemon.ExitCode.NOT_STARTED
    typer.echo(f"see what it does with: headrace status -c {wanted.file}", err=True)
    return daemon.run(wanted.file)


def prepare_topics(wanted: CollectorOptions, client: Mapping[str, Any]) -> None:
    """Create what is missing, if that is wanted. Blocks.

    Raises:
        StartError: a topic is missing, or the brokers refuse or do not answer.
    """
    deadline = Deadline.after(_TOPICS_TIMEOUT)
    catalog = KafkaTopicCatalog(client, wanted.group)
    try:
        topics = {each.name: each for each in wanted.topics}
        missing = sorted(set(topics) - set(catalog.describe([*topics], deadline)))
        if missing and wanted.create is None:
            raise StartError(
                f"there is no topic {' and no topic '.join(missing)} at {wanted.brokers}; create "
                "it, or have it created with --create"
            )
        for name in missing:
            if catalog.create(topics[name], deadline):
                typer.echo(f"created topic {name} with {wanted.create} partitions", err=True)
    finally:
        catalog.close()


def write(wanted: CollectorOptions, instance_id: str, text: str) -> None:
    """Write the configuration, unless another process runs with it. Blocks.

    Raises:
        StartError: one does, and would take up what is written; or the folder cannot be written.
    """
    file, identity = wanted.file, Identity(wanted.folder, instance_id)
    try:
        identity.acquire()
        write_whole(file, text)
    except StartError as error:
        raise StartError(
            f"a collector runs already with the folder {file.parent}; stop it, or name another "
            f"folder with --state-dir ({error})"
        ) from error
    except OSError as error:
        raise StartError(
            f"{file} cannot be written: {error.strerror}; name another folder with --state-dir"
        ) from error
    finally:
        identity.release()
