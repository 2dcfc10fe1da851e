"""Set up this checkout: Java, the virtual environment, the locked packages, Kafka's jars.

    python3 scripts/bootstrap.py run|test|test-all|check|docs|bench|dist

"run" is what the demo needs, "test" adds what the tests need (which try the benchmarks too),
"test-all" what the slow ones need beside that, "check" what the checkers need, "docs" what builds
the documentation, "bench" what the benchmarks need, "dist" what makes packages. Once done it
returns at once, until a lock file changes. While packages are being installed the environment bears
no stamp: a set-up interrupted there makes the environment again.

It says how far it is at least every few seconds, and what went wrong and what to do in one line.

Only the standard library: this runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "set-up.json"

MINIMUM_PYTHON = (3, 11)

#: The steps for each purpose, in order. "build" holds what makes packages of the others.
STEPS = {
    "run": ("build", "run", "project", "kafka"),
    "test": ("build", "run", "test", "bench", "project", "kafka", "connector"),
    "test-all": (
        *("build", "run", "test", "bench", "test-all", "check", "docs"),
        *("project", "kafka", "connector"),
    ),
    "check": ("build", "run", "test", "bench", "test-all", "check", "project"),
    "docs": ("build", "run", "docs", "project"),
    "bench": ("build", "run", "bench", "project", "kafka", "connector"),
    # without headrace there are no manual pages
    "dist": ("build", "slim", "dist", "project"),
}

#: What each step depends on: its lock file, or these.
SOURCES = {
    "project": ROOT / "pyproject.toml",
    "kafka": max((ROOT / "headrace" / "devstack").glob("kafka-*.sha256")),
    "connector": max((ROOT / "headrace" / "devstack").glob("spark-kafka-*.sha256")),
}

#: What the project's step depends on beside that: what is compiled, and how.
COMPILED = (ROOT / "hatch_build.py", *sorted((ROOT / "headrace").rglob("*.[ch]")))

#: What is fetched from Maven Central, by step.
JARS = {"kafka": "the Kafka broker", "connector": "Spark's Kafka connector"}

#: Seconds after which a set-up that still works says how far it is.
SHOWN_EVERY = 3.0

#: MB from which a package is named while it is fetched.
LARGE_MB = 100.0

#: What pip says where it fails for a known reason, and what that means for whoever runs this.
PIP_FAILURES = {
    "No space left on device": f"the disk is full: make 2 GB free for {VENV}, then run this again",
    "DO NOT MATCH THE HASHES": (
        "a package differs from the one that is locked: a mirror or proxy changed it, or it was "
        "damaged on its way; run this again, and if that does not help name another mirror in "
        "PIP_INDEX_URL"
    ),
    "No matching distribution found": (
        "a package could not be had: check the network, or name a mirror of the package index in "
        "PIP_INDEX_URL or pip's configuration, then run this again"
    ),
}

#: How many of pip's last lines are shown where it fails for another reason.
PIP_QUOTED = 15

#: Java runtimes under Debian's and Ubuntu's names; releases differ in which of them they have.
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")


class SetUpError(Exception):
    """The set-up cannot go on; the message says what to do."""


def main(arguments: list[str]) -> int:
    """Set up for the purpose in ``arguments`` and return the exit code."""
    if len(arguments) != 1 or arguments[0] not in STEPS:
        print(__doc__)
        return 2
    try:
        require_python()
        with one_at_a_time():
            set_up(arguments[0])
    except SetUpError as error:
        say(str(error))
        return 1
    except subprocess.CalledProcessError as error:
        say(f"this failed: {' '.join(map(str, error.cmd))}")
        return 1
    return 0


def set_up(purpose: str) -> None:
    """Do the steps that are not done, or all of them again where an older lock was installed."""
    wanted = {step: digest(step) for step in STEPS[purpose]}
    done = read_stamp()
    todo = [step for step in wanted if done.get(step) != wanted[step]]
    if not todo:
        return
    if {"kafka", "connector"}.intersection(todo):
        require_java()
    if not done or any(step in done and step not in SOURCES for step in todo):
        require_venv()
        say(f"making {VENV.name} with Python {python_version()}")
        run(sys.executable, "-m", "venv", "--clear", VENV)
        done, todo = {}, list(wanted)
    for step in todo:
        do(step)
        done[step] = wanted[step]
        STAMP.write_text(json.dumps({**place(), "done": done}, indent=2), encoding="utf-8")
    say("done")


def do(step: str) -> None:
    """Do one step."""
    if step == "project":
        say("installing headrace itself")
        pip("--no-deps", "--editable", ROOT)
    elif step in {"kafka", "connector"}:
        say(f"looking for the jars of {JARS[step]} in the cache")
        fetch_jars(step)
    else:
        say(f"installing the packages of {lock(step).relative_to(ROOT)}")
        STAMP.unlink(missing_ok=True)
        pip("--no-deps", "--require-hashes", "--requirement", lock(step))


def pip(*arguments: str | Path) -> None:
    """Install with the environment's pip, which follows the machine's settings for mirrors.

    What is built is built with locked packages only. Bytecode comes with the first import: most
    modules of the large packages are never imported.

    Raises:
        SetUpError: pip failed; the message says why, and what to do.
    """
    options = ("--disable-pip-version-check", "--no-build-isolation", "--no-compile", "--no-input")
    output = PipOutput(sum(map(pins, map(Path, arguments))))
    try:
        with output.shown():
            run(PYTHON, "-m", "pip", "install", *options, *arguments, hear=output.hear)
    except subprocess.CalledProcessError as error:
        raise SetUpError(output.explanation()) from error


def pins(lock_file: Path) -> int:
    """Return how many packages a lock file pins, those for other systems too; 0 for other paths."""
    if lock_file.suffix != ".lock":
        return 0
    return len(re.findall(r"^\S+==", lock_file.read_text(encoding="utf-8"), re.MULTILINE))


class PipOutput:
    """What pip says: shown as few lines of progress, and kept to say why it failed.

    ``total`` is how many packages it was asked for; what another system needs is not counted.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._lines: list[str] = []
        self._count = 0
        self._state = "asking the package index"
        self._shown_at = self._begun_at = time.monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Say how far pip is while the block runs, also where pip itself says nothing for long."""
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=[ended], daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join(SHOWN_EVERY)

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(SHOWN_EVERY / 10):
            if time.monotonic() - self._shown_at >= SHOWN_EVERY:
                self._show(f"{self._state} ({time.monotonic() - self._begun_at:.0f} s)")

    def hear(self, line: str) -> None:
        """Take a line, and show how far pip is where that takes long."""
        self._lines.append(line)
        first, _, rest = line.strip().partition(" ")
        if first == "Ignoring":
            self._total -= 1
        elif first == "Collecting":
            self._count += 1
        elif first in {"Downloading", "Using"}:
            of = f" of {self._total}" if self._total else ""
            self._become(f"package {self._count}{of}: {rest}", now=_is_large(rest))
        elif first == "Building" and rest.startswith("wheels"):
            self._become(f"building {rest.partition(': ')[2]}", now=True)
        elif first == "Installing" and rest.startswith("collected"):
            self._become(f"unpacking {rest.partition(': ')[2].count(',') + 1} in all", now=True)
        elif first == "WARNING:" and rest.startswith("Retrying"):
            self._become("the package index does not answer; pip asks again", now=True)

    def _become(self, state: str, *, now: bool) -> None:
        self._state = state
        if now:
            self._show(state)

    def _show(self, text: str) -> None:
        self._shown_at = time.monotonic()
        say(f"  {text}")

    def explanation(self) -> str:
        """Return in one line why pip failed and what to do; an unforeseen reason is shown whole."""
        errors = [line.partition("ERROR: ")[2] for line in self._lines if "ERROR: " in line]
        said = errors[-1] if errors else "it was ended"
        text = "\n".join(self._lines)
        for sign, meaning in PIP_FAILURES.items():
            if sign in text:
                return f"{meaning} (pip said: {said})"
        sys.stderr.write("\n".join(self._lines[-PIP_QUOTED:]) + "\n")
        return f"pip failed: {said}; its last lines are above; run this again once that is cured"


def _is_large(download: str) -> bool:
    """Whether what pip is fetching, as in "name.whl (434.1 MB)", takes a while."""
    size, _, unit = download.rpartition("(")[2].rstrip(")").partition(" ")
    return unit == "GB" or (unit == "MB" and float(size) >= LARGE_MB)


def fetch_jars(step: str) -> None:
    """Have the jars of a step in the user's cache; what fetches them says how far it is.

    Raises:
        SystemExit: they could not be fetched, as it has said.
    """
    fetch = f"import sys; from headrace.devstack.jars import main; sys.exit(main({step!r}))"
    try:
        run(PYTHON, "-c", fetch)
    except subprocess.CalledProcessError as error:
        raise SystemExit(1) from error


def run(*command: str | Path, hear: Callable[[str], None] | None = None) -> None:
    """Run a command, hand over its lines as they come, raise CalledProcessError if it fails.

    It shares the lock of ``one_at_a_time``, which therefore holds until the command has ended,
    even if this process is killed.
    """
    if hear is None:
        subprocess.run(command, check=True, cwd=ROOT, close_fds=False)
        return
    with subprocess.Popen(
        command,
        cwd=ROOT,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            hear(line.rstrip())
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)


def say(text: str) -> None:
    """Tell what happens; on standard error, which leaves the output to the commands that follow."""
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def lock(group: str) -> Path:
    """Return a group's lock file."""
    return LOCKS / f"{group}.lock"


def digest(step: str) -> str:
    """Return what tells whether a step done earlier is still good."""
    files = (SOURCES.get(step, lock(step)), *(COMPILED if step == "project" else ()))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def python_version() -> str:
    """Return major and minor version: an environment does not survive a change of these."""
    return "{}.{}".format(*sys.version_info)


def place() -> dict[str, str]:
    """Return what an environment is bound to: its scripts name its folder."""
    return {"python": python_version(), "root": str(ROOT)}


def read_stamp() -> dict[str, str]:
    """Return the digests of the steps done here; nothing if it is not known for certain."""
    try:
        stamp: dict[str, Any] = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    done: dict[str, str] = stamp.pop("done")
    return done if stamp == place() and PYTHON.exists() else {}


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a lock on the folder of lock files, which needs no file of its own."""
    descriptor = os.open(LOCKS, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# --- what only the system can provide -----------------------------------------------------------


def require_python() -> None:
    """Refuse a Python that is too old."""
    if sys.version_info < MINIMUM_PYTHON:
        raise SetUpError(
            f"{sys.executable} is Python {python_version()}, but 3.11 or later is needed; "
            "name another one, such as: make PYTHON=python3.12 demo"
        )


def require_venv() -> None:
    """Make sure that environments can be made: Debian keeps a part of that in a package."""
    if importlib.util.find_spec("ensurepip") is None:
        package = f"python{python_version()}-venv"
        install([package], f"Python's ensurepip is missing; install {package}")


def require_java() -> None:
    """Make sure that there is a Java that Spark and Kafka can run on."""
    java = load(ROOT / "headrace" / "devstack" / "java.py")
    if java.find_java() is None:
        problem = (
            f"no Java {java.MINIMUM_JAVA} or later was found; install one (Debian, Ubuntu: "
            f"apt-get install {JAVA_PACKAGES[0]} or {JAVA_PACKAGES[1]}) or set JAVA_HOME"
        )
        install(JAVA_PACKAGES, problem, agreed=os.environ.get("HEADRACE_INSTALL_JRE") == "1")
        if java.find_java() is None:
            raise SetUpError(problem)


def install(packages: Sequence[str], problem: str, *, agreed: bool = False) -> None:
    """Install the first of the Debian packages that this release has, if that is agreed to."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetUpError(problem)
    if not (agreed or os.environ.get("CI") == "true" or asked(packages[0], problem)):
        raise SetUpError(problem)
    apt("update")
    for package in packages:
        say(f"installing {package}")
        if apt("install", "--no-install-recommends", "--no-upgrade", "--no-remove", package):
            return
    raise SetUpError(problem)


def apt(*arguments: str) -> bool:
    """Run apt-get without questions and return whether it succeeded.

    It only ever adds to a system: what is installed is neither upgraded nor removed.
    """
    command = ["apt-get", "--quiet", "--yes", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, check=False, env=environment, stdin=subprocess.DEVNULL)
    return done.returncode == 0


def asked(package: str, problem: str) -> bool:
    """Ask on the terminal whether to install; without a terminal the answer is no."""
    if not sys.stdin.isatty():
        return False
    answer = input(f"set-up: {problem}.\nInstall {package} (or what this release has) now? [y/N] ")
    return answer.strip().lower() in {"y", "yes"}


def load(path: Path) -> Any:
    """Return a module of the package that needs only the standard library, without the package."""
    spec = importlib.util.spec_from_file_location(f"bootstrap_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
