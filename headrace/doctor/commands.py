"""What ``headrace doctor`` does, from a file's name to an exit code."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from headrace.config import load
from headrace.config.cli import EXIT_CONFIG, report
from headrace.doctor.examination import Patient, examine, exit_code
from headrace.doctor.show import ACLS, document, line, summary, table
from headrace.errors import ConfigError
from headrace.logs import configure_logging
from headrace.preflight import preflight

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.doctor.finding import Finding


def doctor(file: Path, *, as_json: bool) -> int:
    """Examine what ``file`` needs, print what is found and return the exit code."""
    read: list[Path] = []
    try:
        config = load(file, reads=read.append, also=preflight)
    except ConfigError as error:
        report(file, error)
        return EXIT_CONFIG
    configure_logging(config.logging.model_copy(update={"level": "error"}))
    patient = Patient(config, file, tuple(read), os.environ)
    findings: list[Finding] = []
    shows_lines = not as_json and not sys.stdout.isatty()
    for finding in examine(patient):
        findings.append(finding)
        if shows_lines:  # as they come: some take a while
            typer.echo(line(finding))
    if as_json:
        typer.echo(json.dumps(document(findings, patient.acls), indent=2))
        return exit_code(findings)
    if not shows_lines:
        Console().print(table(findings))
    typer.echo("\n".join([summary(findings), "", ACLS, *patient.acls]))
    return exit_code(findings)
