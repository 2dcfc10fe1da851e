"""Jars of the broker and of Spark's Kafka connector: fetched once per user, always checked."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.core.progress import Silence, signs_of_work
from headrace.devstack.errors import LocalStackError
from headrace.devstack.jvm import SHORT_LIVED, java_command, pick_jars
from headrace.devstack.wait import SILENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_MAIN = "org.apache.ivy.Main"
_PATTERN = "[organisation]_[artifact]-[revision](-[classifier]).[ext]"

#: Names an Ivy settings file, for machines that reach Maven Central only through a mirror.
SETTINGS_VARIABLE = "HEADRACE_IVY_SETTINGS"

#: How Ivy's lines about one module or one jar begin, and what is told about them.
_MARKS = {"\tfound ": "found", "\t[SUCCESSFUL ]": "fetched"}
_REPORTED_EVERY = 5

#: What Ivy says of an address that failed, with the reason in parentheses, and of what is missing.
_ACCESS_ERROR = re.compile(r"Server access error at url .*\((?:[\w.]+: )?(.*)\)$")
_NOT_FOUND = re.compile(r":: (\S+: not found)$")


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A Maven artifact's coordinate: its organisation, its name and its version.

    An archive beside the jar has a ``classifier``, and a name that ends in ``extension``.
    """

    organisation: str
    module: str
    revision: str
    classifier: str = ""
    extension: str = "jar"

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.revision}"


def fetch(
    coordinate: Coordinate,
    folder: Path,
    *,
    needs: bool = True,
    report: Callable[[str], None],
    deadline: Deadline,
) -> None:
    """Put the artifact and, if ``needs``, all it depends on into ``folder/jars``.

    Blocks until the deadline, and while anything comes.

    Raises:
        LocalStackError: Ivy failed, was not done in time, or nothing came any more.
    """
    command = java_command(
        _MAIN,
        ivy_arguments(coordinate, folder, os.environ, needs=needs),
        class_path=pick_jars(["ivy-"]),
        heap="256m",
        flags=[SHORT_LIVED],
    )
    said: list[str] = []

    def handle_line(line: str) -> None:
        said.append(line)
        if step := progress_of(said):
            report(step)

    if _run(command, handle_line, deadline, folder) != 0:
        raise LocalStackError(
            f"{coordinate} could not be fetched from Maven Central: {failure_in(said)}; check the "
            f"network, or name an Ivy settings file with a mirror in {SETTINGS_VARIABLE}, and try "
            "again"
        )


def ivy_arguments(
    coordinate: Coordinate, folder: Path, environment: Mapping[str, str], *, needs: bool = True
) -> list[str]:
    """Return Ivy's arguments for one artifact, with the settings file if one is named."""
    settings = environment.get(SETTINGS_VARIABLE)
    return [
        *(["-settings", settings] if settings else []),
        *("-cache", str(folder / "ivy")),
        *_wanted(coordinate, folder),
        *([] if needs else ["-notransitive"]),
        *("-confs", "default"),
        *("-retrieve", str(folder / "jars" / _PATTERN)),
    ]


def _wanted(coordinate: Coordinate, folder: Path) -> list[str]:
    """Return the arguments that name an artifact; an archive is named in a file of Ivy's."""
    if not coordinate.classifier:
        names = (coordinate.organisation, coordinate.module, coordinate.revision)
        return ["-dependency", *names]
    file = folder / "ivy.xml"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(
        _IVY_FILE.format(
            organisation=coordinate.organisation,
            module=coordinate.module,
            revision=coordinate.revision,
            classifier=coordinate.classifier,
            extension=coordinate.extension,
        ),
        encoding="utf-8",
    )
    return ["-ivy", str(file)]


_IVY_FILE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="headrace" module="archive"/>
<configurations><conf name="default"/></configurations>
<dependencies>
<dependency org="{organisation}" name="{module}" rev="{revision}"
 conf="default->*" transitive="false">
<artifact name="{module}" type="{extension}" ext="{extension}" m:classifier="{classifier}"/>
</dependency>
</dependencies>
</ivy-module>
"""


def progress_of(said: list[str]) -> str | None:
    """Return what to tell after Ivy's last line: every fifth module found, every fifth jar."""
    for mark, what in _MARKS.items():
        if mark in said[-1]:
            count = sum(mark in line for line in said)
            return None if count % _REPORTED_EVERY else f"{what} {count}"
    return None


def failure_in(said: Sequence[str]) -> str:
    """Return why Ivy failed: an address that did not answer, else a missing module, or its end."""
    for pattern in (_ACCESS_ERROR, _NOT_FOUND):
        for line in said:
            if match := pattern.search(line):
                return match[1]
    return next((line.strip() for line in reversed(said) if line.strip()), "Ivy said nothing")


def _run(
    command: list[str], handle_line: Callable[[str], None], deadline: Deadline, folder: Path
) -> int:
    """Run the command and hand over its lines as they come.

    It is killed at the deadline, and once neither it nor what it writes to the folder moves.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        silence = Silence(signs_of_work([process.pid], [folder]), SILENCE_S)

        def watch() -> None:
            if not wait_for(lambda: process.poll() is not None, deadline, silence):
                process.kill()

        watching = threading.Thread(target=watch, name="fetch-watch", daemon=True)
        watching.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                handle_line(line.rstrip())
            return process.wait()
        finally:
            process.kill()
            watching.join()


_SPARK = "org.apache.spark"


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that belong together, with their sums in ``<name>.sha256`` in ``folder``.

    ``needs``: whether what the artifacts depend on is fetched as well. ``size`` is in MB.
    """

    name: str
    title: str
    artifacts: tuple[Coordinate, ...]
    needs: bool
    size: int
    folder: Path = Path(__file__).parent

    @property
    def sums_file(self) -> Path:
        """Return the pinned sums, as ``sha256sum`` writes them."""
        return self.folder / f"{self.name}.sha256"


def _broker(version: str, size: int) -> JarSet:
    artifact = Coordinate("org.apache.kafka", "kafka_2.13", version)
    return JarSet(f"kafka-{version}", "Kafka jars", (artifact,), needs=True, size=size)


#: The brokers of the local stack by version, the one that it has by default first.
BROKERS = {
    "4.2.2": _broker("4.2.2", 44),
    # loses marks of transactions (KAFKA-20734), as 4.3.1 does
    "4.3.0": _broker("4.3.0", 44),
    "4.0.1": _broker("4.0.1", 40),
    "3.9.2": _broker("3.9.2", 46),
}

#: Names the version of the local stack's broker.
VERSION_VARIABLE = "HEADRACE_KAFKA_VERSION"


def broker_set(environment: Mapping[str, str]) -> JarSet:
    """Return the broker that the environment names, else the first.

    Raises:
        LocalStackError: there is none of this version.
    """
    first, *_ = BROKERS
    version = environment.get(VERSION_VARIABLE) or first
    if version not in BROKERS:
        raise LocalStackError(
            f"{VERSION_VARIABLE}: the local stack has no Kafka {version}; name one of "
            f"{', '.join(BROKERS)}, or none for {first}"
        )
    return BROKERS[version]


#: Kafka Streams with all that it depends on, and a logger that says nothing: what results of
#: topologies are compared with.
KAFKA_STREAMS = JarSet(
    "kafka-streams-4.3.0",
    "Kafka Streams jars",
    (
        Coordinate("org.apache.kafka", "kafka-streams", "4.3.0"),
        Coordinate("org.slf4j", "slf4j-nop", "1.7.36"),
    ),
    needs=True,
    size=94,
)


#: The schema registry of the local stack.
APICURIO = JarSet(
    "apicurio-3.3.3",
    "Schema registry",
    (Coordinate("io.apicurio", "apicurio-registry-app", "3.3.3", "all", "tar.gz"),),
    needs=False,
    size=159,
)


def _connector(spark: str, kafka_clients: str, commons_pool: str) -> JarSet:
    """Return what a Spark does not bring itself of what its Kafka source is made of."""
    return JarSet(
        f"spark-kafka-{spark}",
        f"Kafka connector of Spark {spark}",
        (
            Coordinate(_SPARK, "spark-sql-kafka-0-10_2.13", spark),
            Coordinate(_SPARK, "spark-token-provider-kafka-0-10_2.13", spark),
            Coordinate("org.apache.kafka", "kafka-clients", kafka_clients),
            Coordinate("org.apache.commons", "commons-pool2", commons_pool),
        ),
        needs=False,
        size=10,
    )


#: By the line of Spark from which on they are taken, the newest first.
CONNECTORS = {
    (4, 2): _connector("4.2.0", "3.9.2", "2.13.1"),
    (4, 0): _connector("4.0.0", "3.9.0", "2.12.0"),
}


def connector_set() -> JarSet:
    """Return the connector for the pyspark installed: of its line, else of the one before.

    Without pyspark it is the newest, for a folder that another machine will use.
    """
    newest, *_ = CONNECTORS
    try:
        major, minor, *_ = metadata.version("pyspark").split(".")
        line = int(major), int(minor)
    except metadata.PackageNotFoundError:
        line = newest
    return next(found for first, found in CONNECTORS.items() if first <= line)


#: What the set-up of a checkout fetches, by the names of its steps.
SETS: Mapping[str, Callable[[], JarSet]] = {
    "kafka": lambda: broker_set({}),
    "connector": connector_set,
}

#: Names the folder for the cache; the default is ``headrace`` in the XDG cache folder.
CACHE_VARIABLE = "HEADRACE_CACHE"

#: Fetching takes half a minute on a good line. It may take this long where something always comes.
_FETCH_TIMEOUT_S = 3600


def show_on_stderr(step: str) -> None:
    """Show one step of the fetching: on a terminal in place, elsewhere line by line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{step}")
        sys.stderr.flush()
    else:
        sys.stderr.write(f"{step.rstrip()}\n")


def main(name: str) -> int:
    """Fetch the jars of ``SETS[name]`` into the cache; return an exit code, print errors."""
    try:
        cached(SETS[name]())
    except LocalStackError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def kafka_jars(
    report: Callable[[str], None] = show_on_stderr, deadline: Deadline | None = None
) -> list[Path]:
    """Return the jars of the Kafka broker that the environment names; see :func:`cached`."""
    return cached(broker_set(os.environ), report, deadline)


def cached(
    wanted: JarSet,
    report: Callable[[str], None] = show_on_stderr,
    deadline: Deadline | None = None,
) -> list[Path]:
    """Return jars in the user's cache, fetched first where they are missing or damaged.

    Blocks while they are fetched, by this process or by another one of the same user.

    Raises:
        LocalStackError: they could not be fetched, or differ from the pinned sums.
    """
    sums = pinned_sums(wanted)
    folder = cache_folder(os.environ) / wanted.name
    if damaged(folder, sums):
        _install(wanted, folder, report, deadline or Deadline.after(_FETCH_TIMEOUT_S))
    return [folder / name for name in sorted(sums)]


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that holds what is fetched once per user."""
    if chosen := environment.get(CACHE_VARIABLE):
        return Path(chosen).absolute()
    if shared := environment.get("XDG_CACHE_HOME"):
        return Path(shared) / "headrace"
    return Path.home() / ".cache" / "headrace"


def pinned_sums(wanted: JarSet) -> dict[str, str]:
    """Return jar name to SHA-256 sum, from the list in this package (``sha256sum`` format)."""
    lines = wanted.sums_file.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def damaged(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Return the names of the jars that are missing from ``folder`` or differ. Takes 50 ms."""
    return [name for name, digest in sums.items() if _digest(folder / name) != digest]


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _install(
    wanted: JarSet, folder: Path, report: Callable[[str], None], deadline: Deadline
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(wanted, folder.with_suffix(".lock"), report, deadline):
        if not damaged(folder, pinned_sums(wanted)):
            return
        for abandoned in folder.parent.glob(f".{folder.name}-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as new:
            _fetch_checked(wanted, Path(new), report, deadline)
            if folder.exists():
                folder.rename(Path(new, "damaged"))
            Path(new, "jars").rename(folder)


def _fetch_checked(
    wanted: JarSet, folder: Path, report: Callable[[str], None], deadline: Deadline
) -> None:
    sums = pinned_sums(wanted)
    total, first = len(sums), wanted.artifacts[0]
    report(f"{wanted.title}: fetching {first}, {total} jars, {wanted.size} MB, once per user")
    for artifact in wanted.artifacts:
        fetch(
            artifact,
            folder,
            needs=wanted.needs,
            report=lambda step: report(f"{wanted.title}: {step} of {total}"),
            deadline=deadline,
        )
    if wrong := damaged(folder / "jars", sums):
        raise LocalStackError(
            f"the jars fetched for {first} are not the pinned ones and were thrown away: "
            f"{', '.join(wrong)}; a mirror may have changed them; the sums are in "
            f"{wanted.sums_file}"
        )
    report(f"{wanted.title}: {total} jars fetched and checked\n")


@contextmanager
def _locked(
    wanted: JarSet, path: Path, report: Callable[[str], None], deadline: Deadline
) -> Iterator[None]:
    """Hold the file's lock; the operating system frees it with the process that holds it."""
    with path.open("w") as file:
        if not _try_lock(file.fileno()):
            report(f"{wanted.title}: waiting for another process that is fetching them")
            silence = Silence(signs_of_work(files=[path.parent]), SILENCE_S)
            if not wait_for(lambda: _try_lock(file.fileno()), deadline, silence):
                raise LocalStackError(
                    f"another process still fetches {wanted.name}, and nothing has come for a "
                    f"while; it holds {path}: end it, and try again"
                )
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
