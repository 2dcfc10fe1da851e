"""Command lines for Java servers: the runtime, the jars that pyspark brings, the class path."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.devstack.errors import LocalStackError
from headrace.devstack.java import MINIMUM_JAVA, Java, find_java

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Logging for both servers: one slf4j with one log4j behind it, all of one version.
LOGGING_JARS = ("slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-")

#: The serial collector has the smallest footprint; a JVM without memory must not linger on;
#: performance data would be left behind in /tmp by a killed process.
COMMON_FLAGS = ("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData")

#: For a JVM that lives for minutes at most: it compiles quickly rather than well.
SHORT_LIVED = "-XX:TieredStopAtLevel=1"


@cache
def require_java(minimum: int = MINIMUM_JAVA) -> Java:
    """Return this machine's Java, found once per process; raises LocalStackError."""
    java = find_java(minimum=minimum)
    if java is None:
        raise LocalStackError(
            f"no Java {minimum} or later in JAVA_HOME, PATH or the usual folders; install one "
            f"(Debian, Ubuntu: apt-get install openjdk-{minimum}-jre-headless) or set JAVA_HOME"
        )
    return java


def pyspark_jars() -> Path:
    """Return pyspark's folder of jars, without importing pyspark; raises LocalStackError."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LocalStackError(
            "the local stack runs on pyspark's jars, which are not installed; "
            "pip install 'headrace[local]'"
        )
    return Path(spec.origin).parent / "jars"


def pick_jars(prefixes: Sequence[str], *, where_there: Sequence[str] = ()) -> list[Path]:
    """Return the jars of pyspark whose names begin so; all jars if one prefix has none.

    ``where_there`` are prefixes that not every line of Spark has a jar of.

    A short class path starts a server in half the time; the full one is what pyspark itself
    uses, and right when a release renamed a jar.
    """
    folder = pyspark_jars()
    found = [_jars_of(folder, prefix) for prefix in prefixes]
    if not all(found):
        return [folder / "*"]
    found += [_jars_of(folder, prefix) for prefix in where_there]
    return [jar for jars in found for jar in jars]


def _jars_of(folder: Path, prefix: str) -> list[Path]:
    return sorted(folder.glob(f"{prefix}[0-9]*.jar"))


def java_command(
    main: str,
    arguments: Sequence[str],
    *,
    class_path: Sequence[Path],
    heap: str,
    flags: Sequence[str] = (),
) -> list[str]:
    """Return the command that runs ``main``. ``heap`` is the JVM's own notation: ``512m``."""
    jars = os.pathsep.join(map(str, class_path))
    java = str(require_java().path)
    return [java, f"-Xmx{heap}", *COMMON_FLAGS, *flags, "-cp", jars, main, *arguments]


def log4j_flag(directory: Path) -> str:
    """Write a log4j2 file into ``directory`` and return the flag that makes a JVM use it."""
    path = directory / "log4j2.properties"
    path.write_text(_LOG4J2, encoding="utf-8")
    return f"-Dlog4j2.configurationFile={path}"


_LOG4J2 = """\
status=ERROR
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=OUT
appender.out.type=Console
appender.out.name=OUT
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c{1.} %m%n
"""
