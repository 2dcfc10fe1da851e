"""Java, as pyspark will find it, and the jars that the session is told of."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.doctor.finding import error, ok, warning
from headrace.local.java import MINIMUM_JAVA, find_java, java_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.config import SparkConfig
    from headrace.doctor.finding import Finding

_CHECK = "java"

#: The newest Java that Spark 4.0 is tested with by its makers.
NEWEST_JAVA = 21

_INSTALL = "install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"


def check_java(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Look at the Java that Spark's launcher takes: that of JAVA_HOME, else that of the PATH."""
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
        advice = f"Spark 4.0 supports Java {MINIMUM_JAVA} and {NEWEST_JAVA}; prefer one of them"
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
    """Name a Java that would do, if this machine has one."""
    found = find_java(environment)
    if found is None:
        return f"{_INSTALL}, or set JAVA_HOME"
    return f"set JAVA_HOME={found.home}, which is Java {found.version}"


_CONNECTOR = re.compile(
    r"org\.apache\.spark:(?P<name>[\w.-]+)_(?P<scala>[\d.]+):(?P<version>[\d.]+)"
)


def check_jars(spark: SparkConfig, pyspark_version: str) -> Iterator[Finding]:
    """Look at the jars and packages in ``spark.properties``; by itself Headrace needs none."""
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
