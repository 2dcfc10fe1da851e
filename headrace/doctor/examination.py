"""All checks, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from headrace.config import SparkProcessorConfig
from headrace.doctor.acls import commands, needed_acls
from headrace.doctor.code import check_code
from headrace.doctor.files import check_secrets, check_state_dir
from headrace.doctor.finding import Level, error
from headrace.doctor.java import check_jars, check_java
from headrace.doctor.kafka import check_kafka
from headrace.doctor.machine import check_disk, check_memory, check_open_files
from headrace.doctor.spark import check_spark
from headrace.doctor.zookeeper import check_zookeeper
from headrace.spark.trial import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from headrace.config import Config
    from headrace.doctor.finding import Finding

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Patient:
    """What is examined: a configuration, its file, the files it read, the environment."""

    config: Config
    file: Path
    read: Collection[Path]
    environment: Mapping[str, str]

    @property
    def uses_spark(self) -> bool:
        """Whether any channel has Spark run its batches."""
        return any(
            channel.enabled and isinstance(channel.processor, SparkProcessorConfig)
            for channel in self.config.channels.values()
        )

    @property
    def acls(self) -> list[str]:
        """The commands that give the least permissions in Kafka."""
        return commands(self.config, needed_acls(self.config))


def examine(patient: Patient) -> Iterator[Finding]:
    """Yield findings as they are made, the quick checks first. Blocks; every wait is bounded."""
    config, spark = patient.config, patient.uses_spark
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("files", lambda: check_state_dir(config)),
        ("secrets", lambda: check_secrets(config, patient.file, patient.read)),
        ("disk", lambda: check_disk(config, patient.environment, spark=spark)),
        ("memory", lambda: check_memory(config, spark=spark)),
        ("open files", lambda: check_open_files(config)),
        ("code", lambda: check_code(config)),
        ("zookeeper", lambda: check_zookeeper(config)),
        ("kafka", lambda: check_kafka(config)),
    ]
    if spark:
        checks += [
            ("java", lambda: check_java(patient.environment)),
            ("jars", lambda: check_jars(config.spark, installed())),
            ("spark", lambda: check_spark(config.spark)),
        ]
    for name, check in checks:
        yield from _guarded(name, check)


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Let one check that fails in a way nobody thought of keep no other from being made."""
    try:
        yield from check()
    except Exception as problem:
        log.exception("doctor_check_failed", check=name)
        seen = f"the check itself failed: {type(problem).__name__}: {problem}"
        yield error(name, seen, "report it, with the traceback above")


def exit_code(findings: Collection[Finding]) -> int:
    """Return 0 where nothing has to be mended, else 1."""
    return int(any(finding.level is Level.ERROR for finding in findings))
