"""All checks, one after the other, and the exit code that comes of them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import typer
from rich.console import Console

from headrace.config import load
from headrace.config.cli import EXIT_CONFIG, report
from headrace.controller.preflight import preflight
from headrace.core.errors import ConfigError
from headrace.core.findings import error, ok
from headrace.ops.doctor.acls import commands, needed_acls
from headrace.ops.doctor.files import check_code, check_secrets, check_sinks, check_state_dir
from headrace.ops.doctor.kafka import check_kafka
from headrace.ops.doctor.machine import check_disk, check_memory, check_open_files
from headrace.ops.doctor.show import ACLS, document, exit_code, line, summary, table
from headrace.ops.doctor.spark import check_jars, check_java, check_spark
from headrace.ops.doctor.zookeeper import check_zookeeper
from headrace.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from headrace.config import Config
    from headrace.core.findings import Finding


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PreflightContext:
    """The input of a check: a configuration, its file, the files it read, the environment."""

    config: Config
    file: Path
    read: Collection[Path]
    environment: Mapping[str, str]

    @property
    def running(self) -> Config:
        """Return the configuration without the channels that are disabled: what will run."""
        enabled = {name: each for name, each in self.config.channels.items() if each.enabled}
        return self.config.model_copy(update={"channels": enabled})

    @property
    def uses_spark(self) -> bool:
        """Return whether any channel that runs has Spark run its batches."""
        return any(channel.on_spark for channel in self.running.channels.values())

    @property
    def acls(self) -> list[str]:
        """Return the commands that give the least permissions in Kafka."""
        return commands(self.config, needed_acls(self.running))


def run_checks(context: PreflightContext) -> Iterator[Finding]:
    """Yield findings as they are made, the quick checks first. Blocks; every wait is bounded."""
    config, spark = context.running, context.uses_spark
    # of these nothing is known afterwards
    disabled = [name for name, each in context.config.channels.items() if not each.enabled]
    if disabled:
        yield ok("channels", f"not looked at, because they are disabled: {', '.join(disabled)}")
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("files", lambda: check_state_dir(config)),
        ("secrets", lambda: check_secrets(context.config, context.file, context.read)),
        ("disk", lambda: check_disk(config, context.environment, spark=spark)),
        ("memory", lambda: check_memory(config, spark=spark)),
        ("open files", lambda: check_open_files(config)),
        ("code", lambda: check_code(config)),
        ("sinks", lambda: check_sinks(config)),
        ("zookeeper", lambda: check_zookeeper(config)),
        ("kafka", lambda: check_kafka(config)),
    ]
    if spark:
        from headrace.extensions.spark.dryrun import installed  # noqa: PLC0415 - an extra

        checks += [
            ("java", lambda: check_java(context.environment)),
            ("jars", lambda: check_jars(config.spark, installed())),
            ("spark", lambda: check_spark(config.spark)),
        ]
    for name, check in checks:
        yield from _run_guarded(name, check)


def _run_guarded(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Run one check; turn an unexpected error into a finding."""
    try:
        yield from check()
    except Exception as problem:
        log.exception("doctor_check_failed", check=name)
        seen = f"the check itself failed: {type(problem).__name__}: {problem}"
        yield error(name, seen, "report it, with the traceback above")


def doctor(file: Path, *, as_json: bool) -> int:
    """Check what ``file`` needs, print what is found and return the exit code."""
    read: list[Path] = []
    try:
        config = load(file, reads=read.append, also=preflight)
    except ConfigError as error:
        report(file, error)
        return EXIT_CONFIG
    configure_logging(config.logging.model_copy(update={"level": "error"}))
    context = PreflightContext(config, file, tuple(read), os.environ)
    findings: list[Finding] = []
    shows_lines = not as_json and not sys.stdout.isatty()
    for finding in run_checks(context):
        findings.append(finding)
        if shows_lines:  # as they come: some take a while
            typer.echo(line(finding))
    if as_json:
        typer.echo(json.dumps(document(findings, context.acls), indent=2))
        return exit_code(findings)
    if not shows_lines:
        Console().print(table(findings))
    typer.echo("\n".join([summary(findings), "", ACLS, *context.acls]))
    return exit_code(findings)
