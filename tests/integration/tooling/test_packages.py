"""The result of ``pip install headrace``: the wheel of this tree in an environment with no more.

It is the one that ``make dist`` makes for this machine, in a copy that has no environment yet.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.integration.documents.runner import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]

_ROOT = Path(__file__).parents[3]

#: What the extras bring, by the names of packages.
_EXTRAS = {"deltalake", "numpy", "pandas", "py4j", "pyspark", "rocksdict", "sqlalchemy"}

#: How a row of the project's reducer stands on the terminal.
_ROW = r"│ (AA|DL|UA) +│ \d+ +│ -?\d+ +│$"

#: MB that a base install may take at the most: pyarrow alone has 165.
_LARGEST_BASE = 260


def _run(*command: str | Path, folder: Path = _ROOT) -> subprocess.CompletedProcess[str]:
    # a checkout on the path would be in the place of what is installed
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _pip(*arguments: str | Path) -> None:
    done = _run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run ``make dist`` as the first command in a copy of this tree; return its folder."""
    copy = tmp_path_factory.mktemp("dist") / "headrace"
    listed = _run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.stdout.split("\0")):
        if (_ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_ROOT / name, copy / name)
    done = _run("make", "dist", f"PYTHON={sys.executable}", folder=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """The wheel for this machine."""
    (found,) = dist.glob(f"headrace-*-*linux*_{platform.machine()}.whl")
    return found


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment into which the wheel was installed, in the locked versions."""
    return _installed(wheel, tmp_path_factory.mktemp("base"))


def _installed(wheel: Path, folder: Path, extras: str = "") -> Path:
    locked = (_ROOT / "requirements" / "run.lock").read_text(encoding="utf-8")
    pins = re.findall(r"^(\S+==.*?) *\\$", locked, re.MULTILINE)
    (folder / "versions.txt").write_text("\n".join(pins), encoding="utf-8")
    assert _run(sys.executable, "-m", "venv", "--without-pip", folder / "env").returncode == 0
    python = folder / "env" / "bin" / "python"
    wanted = f"headrace{extras} @ {wheel.as_uri()}"
    _pip("--python", python, "install", "--constraint", folder / "versions.txt", wanted)
    return folder / "env"


@pytest.fixture
def headrace(base: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return what runs a command of that environment in an empty folder."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return _run(base / "bin" / "headrace", *arguments, folder=tmp_path)

    return run


def _configured(folder: Path, processor: dict[str, str], sink: Any) -> None:
    channel = {"topics": ["flights"], "group": "g", "processor": processor, "sink": sink}
    document = {
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "zookeeper": {"hosts": "127.0.0.1:1"},
        "channels": {"flights": channel},
    }
    (folder / "headrace.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")


def test_the_base_install_is_small(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no library of an extra, and so neither Spark nor its jars."""
    (packages,) = base.glob("lib/python3*/site-packages")
    installed = {path.name.partition("-")[0].lower() for path in packages.glob("*.dist-info")}
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file()) / 1e6
    with capsys.disabled():
        sys.stdout.write(f"\nbase install: {len(installed)} packages, {size:.0f} MB\n")
    assert "headrace" in installed
    assert not installed & _EXTRAS
    assert not list(packages.rglob("*.jar"))
    assert size < _LARGEST_BASE


def test_the_base_install_checks_channels_that_it_can_run(headrace: Any, tmp_path: Path) -> None:
    """Commands say what they do, and channels that need no extra are taken."""
    shown = headrace("--help")
    assert shown.returncode == 0
    assert "doctor" in shown.stdout
    _configured(tmp_path, {"type": "simple"}, {"type": "function", "function": "json:dumps"})
    checked = headrace("check", "-c", "headrace.yaml")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.startswith("flights: at-least-once")
    schema = {"decode": "json", "schema": "a INT"}
    _configured(tmp_path, {"type": "arrow", "reducer": "a:b", **schema}, {"type": "noop"})
    checked = headrace("check", "-c", "headrace.yaml")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_base_install_reduces_with_arrow(headrace: Any, tmp_path: Path) -> None:
    """A reducer of type arrow runs, on JSON that is decoded, without numpy and without Java."""
    (tmp_path / "in.jsonl").write_text('{"a": 2}\n{"a": 3}\n', encoding="utf-8")
    source = "def twice(table, batch):\n    return table.select(['a']).slice(1)\n"
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    options = ("--type", "arrow", "--reducer", "mine:twice", "--schema", "a INT", "--json")
    done = headrace("reduce", "--input", "in.jsonl", *options)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, '{"a":3}'), done.stderr


def test_the_base_install_writes_a_project_that_it_can_run(headrace: Any, tmp_path: Path) -> None:
    """The wheel has the project's files, and none of them takes an extra."""
    done = headrace("init", "mine")
    assert done.returncode == 0, done.stderr
    checked = headrace("check", "-c", "mine/headrace.yaml")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert (tmp_path / "mine" / "headrace.service").is_file()


def test_the_project_runs_on_servers_of_one_s_own(
    base: Path, headrace: Any, tmp_path: Path, bootstrap_servers: str, zookeeper_hosts: str
) -> None:
    """From the base install, without Java, numpy and pandas, records become rows."""
    place = ("--brokers", bootstrap_servers, "--zookeeper", zookeeper_hosts)
    assert headrace("init", "mine", *place).returncode == 0
    produced = _run(base / "bin" / "python", "produce.py", folder=tmp_path / "mine")
    assert produced.returncode == 0, produced.stderr
    done = _run(base / "bin" / "headrace", "run", "--until", "latest", folder=tmp_path / "mine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(_ROW, done.stdout, re.MULTILINE), done.stdout


@pytest.fixture
def tutorial_stack(tmp_path: Path) -> Iterator[None]:
    """End what the tutorial left running."""
    yield
    if (tmp_path / "stack").exists():
        _run(tmp_path / "bin" / "headrace", "local", "down", "--dir", "stack", folder=tmp_path)


@pytest.mark.usefixtures("tutorial_stack")
def test_the_tutorial_runs_on_the_published_wheel(
    wheel: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From the wheel with the extras that it names, on Spark and Delta, to rows in the table."""
    env = _installed(wheel, tmp_path_factory.mktemp("full"), "[delta,local]")
    python, code = env / "bin" / "python", "import headrace; print(headrace.__file__)"
    assert str(env) in _run(python, "-c", code, folder=tmp_path).stdout
    folder = Folder(tmp_path, "docs/tutorial.md", {}, env / "bin")
    folder.write_files()
    folder.run("servers")


def test_no_example_and_no_demo_is_in_a_distribution(dist: Path) -> None:
    """Wheels and sdist contain neither examples nor demos, nor their data."""
    names = []
    for path in dist.glob("*.whl"):
        with zipfile.ZipFile(path) as archive:
            names += archive.namelist()
    for path in dist.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            names += [name.partition("/")[2] for name in archive.getnames()]
    assert {"headrace/cli.py", "pyproject.toml"} <= set(names)
    assert [each for each in names if each.startswith("examples") or "demo" in each] == []


@pytest.mark.parametrize("room", ["kafka.columnar", "formats.native"])
def test_the_parts_in_c_are_in_the_wheel(base: Path, room: str) -> None:
    """Each is loaded from where the wheel put it, for the libraries of this system."""
    code = f"from headrace.{room}.library import load; print(load())"
    done = _run(base / "bin" / "python", "-c", code, folder=base)
    assert done.returncode == 0, done.stderr


def test_a_channel_without_its_extra_is_refused_with_the_command(
    headrace: Any, tmp_path: Path
) -> None:
    """Each place that takes an extra is named with its line and the command."""
    _configured(tmp_path, {"type": "spark", "sql": "SELECT 1"}, {"type": "delta", "path": "t"})
    refused = headrace("check", "-c", "headrace.yaml")
    assert refused.returncode == 2
    assert "pip install 'headrace[spark]'" in refused.stderr
    assert "pip install 'headrace[delta]'" in refused.stderr
    failed = headrace("local", "up")
    assert failed.returncode != 0
    assert "pip install 'headrace[local]'" in failed.stderr


#: As a stranger types it; other servers of the machine may have the usual ports, and the stack then
#: says what to type.
_FIRST_MINUTE = """
headrace init flights && cd flights && headrace local up | tee up.txt &&
eval "$(sed -n 's/^for a project.*: export/export/p' up.txt)" && exec headrace run
"""


def test_the_first_minute_ends_with_a_reduced_record(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line of commands starts servers, which have the project's records, and shows rows."""
    environment = _installed(wheel, tmp_path, "[local]")
    own = {
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    found = {**os.environ, **own}
    for name in ("HEADRACE_CONFIG", "KAFKA", "PYTHONPATH", "ZOOKEEPER"):
        found.pop(name, None)
    begin = time.monotonic()
    try:
        with subprocess.Popen(
            ["sh", "-c", _FIRST_MINUTE],
            cwd=tmp_path,
            env=found,
            stdout=subprocess.PIPE,
            text=True,
        ) as commands:
            assert commands.stdout is not None
            said = []
            for line in commands.stdout:
                said.append(line)
                if re.match(_ROW, line):
                    break
            seconds = time.monotonic() - begin
            commands.terminate()
            commands.stdout.read()
    finally:
        subprocess.run(["headrace", "local", "down"], env=found, check=False)
    assert commands.returncode == 0, "".join(said)
    assert "60 records of records/flights.jsonl are in topic flights\n" in said
    with capsys.disabled():
        sys.stdout.write(f"\nthe first reduced record: {seconds:.0f} s after pip install\n")
