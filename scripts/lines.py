"""Run a ring of tests on each line of Spark, each Python and each broker, one by one.

    python3 scripts/lines.py [NAME...]

Names are those of LINES, by default all. A line of Spark or Python has an environment of its own in
``.lines``: the locked packages, but for pyspark, which is of the line. A Python that this machine
does not have is said to be missing. A broker is run from here, its jars are fetched the first time.
Exit code: 0 all passed that could be run, 1 some failed, or cannot be run and were named, 2 an
unknown name.

Only the standard library and the set-up beside this.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bootstrap import LOCKS, ROOT, say

FOLDER = ROOT / ".lines"

#: The environments hold what the tests of the rings import.
GROUPS = ("build", "run", "test", "bench")

#: What of pyspark's own could have moved: calls that are not public, the hand-over, Python workers,
#: types, sessions that end, the connector, sinks that read what Spark wrote, states in its workers.
SPARK = (
    "tests/unit/extensions/spark",
    "tests/unit/tooling/test_private_parts.py",
    *(
        f"tests/integration/extensions/spark/test_{name}.py"
        for name in (
            "by_reference",
            "decode",
            "delta_files",
            "dryrun",
            "examples",
            "killed_workers",
            "output",
            "persisted",
            "processor",
            "reload",
            "runtime",
            "sinks",
            "sql",
            "time",
            "undecodable",
            "values_alike",
        )
    ),
    "tests/integration/extensions/keyed/test_daemon.py",
)

#: And what doubles promise, of real servers.
UNIT = (
    "tests/unit",
    "tests/integration/channel/test_offset_stores.py",
    "tests/integration/coordinators/test_registry.py",
    "tests/integration/kafka/test_contract.py",
    "tests/integration/zookeeper/test_session.py",
)

#: What a broker promises: reading, offsets, transactions and who is shut out of them, state by key,
#: logs that lose their end, topics that are created again, and permissions.
KAFKA = (
    "tests/integration/kafka",
    "tests/integration/channel/test_offset_stores.py",
    "tests/integration/channel/test_offsets.py",
    "tests/integration/daemon/test_kafka_sink.py",
    "tests/integration/extensions/keyed/test_commands.py",
    "tests/integration/extensions/keyed/test_daemon.py",
    "tests/integration/extensions/keyed/test_restore_end.py",
    "tests/integration/outages/test_broker.py",
    "tests/integration/outages/test_brokers.py",
    "tests/integration/outages/test_topics.py",
    "tests/integration/outages/test_truncated_logs.py",
    "tests/integration/ops/doctor/test_acls.py",
    "tests/integration/ops/test_dead_letters.py",
    "tests/integration/ops/test_transactions.py",
)

#: Slow tests are left out; of a broker's only those that kill at every line, which take an hour.
NOT_SLOW = ("-m", "not slow")
NO_KILLS = ("-k", "not killed_at_every_line")

#: Tests of a broker wait more than they work, and those without Spark are divided by file.
AT_ONCE = ("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")


@dataclass(frozen=True)
class Line:
    """What is installed in place of what is locked, and what is run there.

    With a ``broker`` nothing is installed: the local stack's Kafka has this version.
    """

    tests: tuple[str, ...]
    python: str = "{}.{}".format(*sys.version_info)
    versions: dict[str, str] = field(default_factory=dict)
    broker: str | None = None
    options: tuple[str, ...] = NOT_SLOW


#: The newest release of each line of Spark, each Python beside that of the other targets, and of
#: brokers the oldest line that is looked after, the first without ZooKeeper, that of the stack, and
#: the newest.
LINES = {
    "spark-4.0": Line(SPARK, versions={"pyspark": "4.0.5"}),
    "spark-4.2": Line(SPARK, versions={"pyspark": "4.2.1"}),
    "spark-4.3": Line(SPARK, versions={"pyspark": "4.3.0"}),
    "python-3.11": Line(UNIT, python="3.11", options=(*NOT_SLOW, *AT_ONCE)),
    "python-3.12": Line(UNIT, python="3.12", options=(*NOT_SLOW, *AT_ONCE)),
    "python-3.13": Line(UNIT, python="3.13", options=(*NOT_SLOW, *AT_ONCE)),
    "python-3.14": Line(UNIT, python="3.14", options=(*NOT_SLOW, *AT_ONCE)),
    "kafka-3.9": Line(KAFKA, broker="3.9.2", options=(*NO_KILLS, *AT_ONCE)),
    "kafka-4.0": Line(KAFKA, broker="4.0.1", options=(*NO_KILLS, *AT_ONCE)),
    "kafka-4.2": Line(KAFKA, broker="4.2.2", options=(*NO_KILLS, *AT_ONCE)),
    "kafka-4.3": Line(KAFKA, broker="4.3.0", options=(*NO_KILLS, *AT_ONCE)),
}


def main(names: list[str]) -> int:
    """Run the lines that are named and print a table; return the exit code."""
    unknown = [name for name in names if name not in LINES]
    if unknown:
        print(f"no line {', '.join(unknown)}; there are {', '.join(LINES)}")
        return 2
    results = {name: run_line(name, LINES[name]) for name in names or LINES}
    print()
    for name, (code, result) in results.items():
        state = "not run" if code is None else "failed" if code else "ok"
        print(f"{name:<12} {state:<7} {result}")
    return int(any(code or (code is None and names) for code, _ in results.values()))


def run_line(name: str, line: Line) -> tuple[int | None, str]:
    """Return the exit code and the last line that pytest said, with its seconds.

    The code is None where the line cannot be run on this machine.
    """
    python = find_python(line.python)
    if python is None:
        return None, f"this machine has no Python {line.python}"
    environment = dict(os.environ)
    if line.broker is not None:
        environment["HEADRACE_KAFKA_VERSION"] = line.broker
    else:
        try:
            python = set_up(name, line, python) / "bin" / "python"
        except subprocess.CalledProcessError as error:
            return 1, f"could not be set up: {' '.join(map(str, error.cmd))}"
    say(f"{name}: running its tests")
    begin = time.monotonic()
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *line.options)
    with subprocess.Popen(
        [python, *options, *line.tests],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        last = ""
        for text in tests.stdout:
            sys.stdout.write(text)
            last = text.strip() or last
    return tests.returncode, f"{last} [{time.monotonic() - begin:.0f} s]"


def find_python(version: str) -> Path | None:
    """Return an interpreter of this version, of the PATH or of pyenv; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    on_path = shutil.which(f"python{version}")
    candidates = [Path(sys.executable), *([Path(on_path)] if on_path else []), *installed]
    code = "import sys; print('{}.{}'.format(*sys.version_info))"
    for path in candidates:
        said = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return path
    return None


def set_up(name: str, line: Line, python: Path) -> Path:
    """Return the line's environment, made again where the locks or its versions have changed."""
    folder, wanted = FOLDER / name, requirements(line)
    texts = {"python": str(python), **wanted}
    stamp, digest = folder / "set-up", hashlib.sha256(repr(texts).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
        return folder
    say(f"{name}: making {folder.relative_to(ROOT)} with Python {line.python}")
    run(python, "-m", "venv", "--clear", folder)
    locked = "--require-hashes", "--no-build-isolation"
    for group, text in wanted.items():
        file = folder / f"{group}.txt"
        file.write_text(text, encoding="utf-8")
        pip(folder, *locked, "--requirement", file)
    for package, version in line.versions.items():
        pip(folder, "--no-build-isolation", f"{package}=={version}")
    pip(folder, "--no-build-isolation", "--editable", ROOT)
    stamp.write_text(digest, encoding="utf-8")
    return folder


def requirements(line: Line) -> dict[str, str]:
    """Return the text of each lock without what the line has in another version."""
    found = {}
    for group in GROUPS:
        text = (LOCKS / f"{group}.lock").read_text(encoding="utf-8")
        blocks = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
        kept = [block for block in blocks if block.partition("==")[0] not in line.versions]
        found[group] = "".join(kept)
    return found


def pip(folder: Path, *arguments: str | Path) -> None:
    """Install in an environment; what is locked names all that it needs."""
    options = ("--disable-pip-version-check", "--no-deps", "--no-compile", "--no-input", "--quiet")
    run(folder / "bin" / "python", "-m", "pip", "install", *options, *arguments)


def run(*command: str | Path) -> None:
    """Run a command, which says itself what went wrong."""
    subprocess.run(command, check=True, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
