"""Checks of Java, of Spark's jars, and of a session."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from headrace.core.findings import error, ok, warning
from headrace.devstack.java import MINIMUM_JAVA, find_java, java_version
from headrace.extensions.spark.settings import spark_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.config import SparkConfig
    from headrace.core.findings import Finding
    from headrace.extensions.spark.dryrun import SparkCheck
    from headrace.extensions.spark.settings import SparkSettings


_CHECK = "java"


#: The newest Java that all lines of Spark 4 are tested with by their makers.
NEWEST_JAVA = 21


_INSTALL = "install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"


def check_java(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Java that Spark's launcher takes: that of JAVA_HOME, else of the PATH."""
    path = _launched(environment)
    if path is None:
        where = "JAVA_HOME" if environment.get("JAVA_HOME") else "PATH"
        yield error(_CHECK, f"no java in {where}", _advice(environment))
        return
    version = java_version(path)
    if version is None:
        yield error(_CHECK, f"{path} cannot be run", _advice(environment))
    elif version < MINIMUM_JAVA:
        seen = f"{path} is Java {version}; Spark needs {MINIMUM_JAVA} or later"
        yield error(_CHECK, seen, _advice(environment))
    elif version > NEWEST_JAVA:
        advice = f"Spark 4 supports Java {MINIMUM_JAVA} and {NEWEST_JAVA}; prefer one of them"
        yield warning(_CHECK, f"{path} is Java {version}", advice)
    else:
        yield ok(_CHECK, f"Java {version}: {path}")


def _launched(environment: Mapping[str, str]) -> Path | None:
    home = environment.get("JAVA_HOME")
    if home:
        path = Path(home, "bin", "java")
        return path if path.is_file() else None
    found = shutil.which("java", path=environment.get("PATH"))
    return None if found is None else Path(found)


def _advice(environment: Mapping[str, str]) -> str:
    """Return advice that names a suitable Java, if this machine has one."""
    found = find_java(environment)
    if found is None:
        return f"{_INSTALL}, or set JAVA_HOME"
    return f"set JAVA_HOME={found.home}, which is Java {found.version}"


_CONNECTOR = re.compile(
    r"org\.apache\.spark:(?P<name>[\w.-]+)_(?P<scala>[\d.]+):(?P<version>[\d.]+)"
)


def check_jars(spark: SparkConfig, pyspark_version: str) -> Iterator[Finding]:
    """Check the jars and packages in ``spark.properties``; by itself Headrace needs none."""
    properties = spark.session_properties()
    for jar in _listed(properties.get("spark.jars")):
        if "://" not in jar and not Path(jar).is_file():
            yield error("jars", f"spark.jars names {jar}, which is no file", "correct the path")
    line = ".".join(pyspark_version.split(".")[:2])
    for coordinate in _listed(properties.get("spark.jars.packages")):
        match = _CONNECTOR.fullmatch(coordinate)
        if match is not None and not match["version"].startswith(f"{line}."):
            yield error(
                "jars",
                f"{coordinate} is not of Spark {line}, which is installed",
                f"take org.apache.spark:{match['name']}_2.13:{line}.0",
            )


def _listed(value: object) -> list[str]:
    return [part.strip() for part in str(value or "").split(",") if part.strip()]


log = structlog.get_logger(__name__)


def check_spark(
    section: SparkConfig, attempt: Callable[[SparkSettings], SparkCheck] | None = None
) -> Iterator[Finding]:
    """Start a session with the configuration's settings and run a job. Takes 10 s and more."""
    from headrace.extensions.spark.dryrun import try_spark  # noqa: PLC0415 - an extra

    try:
        checked = (attempt or try_spark)(spark_settings(section))
    except Exception as problem:
        # whatever stops Spark here stops it in the daemon
        log.debug("doctor_spark_failed", exc_info=True)
        text = str(problem).strip().splitlines()
        seen = f"{type(problem).__name__}: {text[0] if text else 'no reason given'}"
        advice = "see the log above; correct the spark section or Java"
        yield error("spark", seen, advice)
    else:
        seen = f"Spark {checked.version} on {section.master}, {checked.cores} tasks at once: "
        yield ok("spark", f"{seen}a session and a job in {checked.seconds:.1f} s")
