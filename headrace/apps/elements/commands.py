"""The commands of applications of elements."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import yaml
from pydantic import ValidationError

from headrace import daemon
from headrace.apps.elements.daemon_config import AppNode, dead_letters, own_topics
from headrace.apps.elements.part_reducer import load_app
from headrace.apps.elements.plan import Wired
from headrace.config.models.kafka import KafkaConfig
from headrace.config.show import escaped
from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError, HeadraceError, ImportPathError, StartError
from headrace.core.files import write_whole
from headrace.core.processes import default_state_dir
from headrace.extensions.keyed.topics import create_topic, open_by_key
from headrace.kafka import KafkaTopicCatalog, clients
from headrace.kafka.catalog import NewTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.apps.elements.plan import AppPlan

_UNUSABLE = 2

#: Seconds that the brokers have for each question, and for each topic.
_PATIENCE = 30.0


def plan_of(app: str, name: str | None) -> AppPlan:
    """Return the plan of an application, whose modules may be in the current folder.

    Raises:
        ConfigError: it does not fit together, or is no application.
        ImportPathError: it cannot be imported.
    """
    sys.path.insert(0, str(Path.cwd()))
    try:
        return load_app(app).plan(name)
    except ValueError as error:
        raise ConfigError([str(error)]) from error


def node(app: str, brokers: str, name: str | None, state_dir: Path | None, **given: Any) -> AppNode:
    """Return the process that a command line describes; the current folder has its modules.

    Raises:
        ConfigError: the application does not fit together.
        ImportPathError: it cannot be imported.
    """
    plan = plan_of(app, name)
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
        chosen = node(app, brokers, name, state_dir, **given)
        text = yaml.safe_dump(escaped(chosen.configuration()), sort_keys=False, allow_unicode=True)
        if print_only:
            typer.echo(text, nl=False)
            return 0
        open_topics(client_of(chosen), chosen.plan, create)
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


def show(app: str, name: str | None, *, mermaid: bool, as_json: bool) -> int:
    """Draw an application, and return the exit code."""
    try:
        plan = plan_of(app, name)
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


def client_of(chosen: AppNode) -> Mapping[str, Any]:
    """Return the properties of librdkafka for the brokers of a process.

    Raises:
        ConfigError: an address or a property cannot be used.
    """
    given = {"bootstrap_servers": chosen.brokers, "properties": dict(chosen.properties)}
    try:
        config = KafkaConfig.model_validate(given)
    except ValidationError as error:
        (first, *_) = error.errors()
        raise ConfigError([f"{'.'.join(map(str, first['loc']))}: {first['msg']}"]) from None
    refused = [f"{name}: {sentence}" for name, sentence in clients.refusals(config)]
    if refused:
        raise ConfigError(refused)
    return clients.client_properties(config)


def open_topics(client: Mapping[str, Any], plan: AppPlan, create: int | None) -> None:
    """Create the topics that are missing, with ``create`` partitions; None: name them. Blocks.

    Topics between elements have as many as inputs have that are read beside them.

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
