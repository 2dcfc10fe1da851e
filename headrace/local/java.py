"""Where this machine keeps Java. Only the standard library, so that set-up scripts can load it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.local.errors import JavaMissingError, LocalStackError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


#: Spark 4 and Kafka 4 both refuse to run on an older one.
MINIMUM_JAVA = 17

#: What ``java -version`` may take; far above the 0.1 s it needs.
_VERSION_TIMEOUT_S = 20

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

#: Where packages and tools put Java, relative to the root folder and to the user's home.
_IN_ROOT = (
    "usr/lib/jvm/*/bin/java",
    "opt/java/*/bin/java",
    "opt/jdk*/bin/java",
    "Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
    "opt/homebrew/opt/openjdk*/bin/java",
)
_IN_HOME = (".sdkman/candidates/java/*/bin/java", ".jdks/*/bin/java")


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that was run and told its version."""

    path: Path
    version: int

    @property
    def home(self) -> Path:
        """What ``JAVA_HOME`` would be for this runtime."""
        return self.path.resolve().parent.parent


def find_java(environment: Mapping[str, str] | None = None) -> Java | None:
    """Return the first Java of at least ``MINIMUM_JAVA``, or None. Blocks while it asks each.

    Looked at in this order: ``JAVA_HOME``, ``PATH``, the folders where packages and tools put it.
    """
    for path in _candidates(os.environ if environment is None else environment):
        version = java_version(path)
        if version is not None and version >= MINIMUM_JAVA:
            return Java(path, version)
    return None


def java_version(path: Path) -> int | None:
    """Return the major version of the ``java`` at ``path``, None if it cannot be run."""
    try:
        answer = subprocess.run(
            [str(path), "-version"],
            capture_output=True,
            check=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(answer.stderr + answer.stdout)


def parse_version(text: str) -> int | None:
    """Return the major version in the output of ``java -version``: 8 for ``1.8.0_402``."""
    match = _VERSION.search(text)
    if match is None:
        return None
    major, minor = int(match[1]), match[2]
    return int(minor) if major == 1 and minor else major


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    seen: set[Path] = set()
    for path in _places(environment):
        if path.is_file() and path.resolve() not in seen:
            seen.add(path.resolve())
            yield path


def _places(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environment.get("PATH")):
        yield Path(on_path)
    yield from _oldest_first(Path("/"), _IN_ROOT)
    if user_home := environment.get("HOME"):
        yield from _oldest_first(Path(user_home), _IN_HOME)


def _oldest_first(root: Path, patterns: Iterable[str]) -> list[Path]:
    """Return what is found, by version: the oldest that will do is what Spark knows best."""
    found = [path for pattern in patterns for path in root.glob(pattern)]
    return sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))])


#: Logging for both servers: one slf4j with one log4j behind it, all of one version.
LOGGING_JARS = ("slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-")

#: The serial collector has the smallest footprint; a JVM without memory must not linger on;
#: performance data would be left behind in /tmp by a killed process.
_COMMON_FLAGS = ("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData")


@cache
def require_java() -> Java:
    """Return this machine's Java, found once per process.

    Raises:
        JavaMissingError: none of at least ``MINIMUM_JAVA`` was found.
    """
    java = find_java()
    if java is None:
        raise JavaMissingError(
            f"no Java {MINIMUM_JAVA} or later in JAVA_HOME, PATH or the usual folders; install "
            "one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
        )
    return java


def pyspark_jars() -> Path:
    """Return pyspark's folder of jars, without importing pyspark.

    Raises:
        LocalStackError: pyspark is not installed in this environment.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LocalStackError("the local stack runs on pyspark's jars; install pyspark")
    return Path(spec.origin).parent / "jars"


def pick_jars(prefixes: Sequence[str]) -> list[Path]:
    """Return the jars of pyspark whose names begin so; all jars if one prefix has none.

    A short class path starts a server in half the time; the full one is what pyspark itself
    uses, and right when a release renamed a jar.
    """
    folder = pyspark_jars()
    found = [sorted(folder.glob(f"{prefix}[0-9]*.jar")) for prefix in prefixes]
    return [jar for jars in found for jar in jars] if all(found) else [folder / "*"]


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
    return [java, f"-Xmx{heap}", *_COMMON_FLAGS, *flags, "-cp", jars, main, *arguments]


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
