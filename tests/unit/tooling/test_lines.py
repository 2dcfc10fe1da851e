from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.devstack.jars import BROKERS

_ROOT = Path(__file__).parents[3]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, as ``make test-lines`` runs it."""
    monkeypatch.syspath_prepend(str(_ROOT / "scripts"))
    return importlib.import_module("lines")


def test_each_line_of_spark_is_within_what_the_package_allows(lines: Any) -> None:
    """The extra's bounds are those that are tested: 4.0 at the least, and below 5."""
    text = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"pyspark>=4.0,<5"' in text
    versions = [line.versions["pyspark"] for line in lines.LINES.values() if line.versions]
    assert versions
    assert all(version.startswith("4.") for version in versions)
    (locked,) = re.findall(
        r"^pyspark==(\d+\.\d+)", (_ROOT / "requirements" / "run.lock").read_text(), re.MULTILINE
    )
    assert f"spark-{locked}" in lines.LINES


def test_each_python_that_is_stated_has_a_line(lines: Any) -> None:
    """The classifiers name those, from the oldest on that the package takes."""
    text = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    stated = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert [name for name in lines.LINES if name.startswith("python-")] == [
        f"python-{version}" for version in stated
    ]
    assert f'requires-python = ">={stated[0]}"' in text


def test_each_broker_of_the_local_stack_has_a_line(lines: Any) -> None:
    """The tests run on each broker that the stack can be started with."""
    run = {name: line.broker for name, line in lines.LINES.items() if line.broker}
    assert sorted(run.values()) == sorted(BROKERS)
    assert list(run) == [f"kafka-{version.rpartition('.')[0]}" for version in run.values()]


@pytest.mark.parametrize(
    "file",
    [
        "deploy/compose/compose.yaml",
        "docs/local-stack.md",
        "headrace/ops/init/project/compose.yaml",
        "tests/docker-compose.yml",
    ],
)
def test_each_broker_that_is_named_was_tried(file: str) -> None:
    """Images that people are told to take are of a version that the table of brokers has."""
    named = re.findall(r"apache/kafka:([\d.]+\d)", (_ROOT / file).read_text(encoding="utf-8"))
    assert named
    assert set(named) <= set(BROKERS)


def test_every_test_of_a_line_exists(lines: Any) -> None:
    """A ring names files and folders of this tree."""
    paths = {path for line in lines.LINES.values() for path in line.tests}
    assert [path for path in paths if not (_ROOT / path).exists()] == []


def test_a_line_has_the_locked_packages_but_for_its_own(lines: Any) -> None:
    """Each package stands once: with its hashes, or in the version of the line."""
    found = "".join(lines.requirements(lines.LINES["spark-4.3"]).values())
    assert not re.search(r"^pyspark==", found, re.MULTILINE)
    assert re.search(r"^py4j==\S+ \\\n +--hash=sha256:", found, re.MULTILINE)
    kept = "".join(lines.requirements(lines.LINES["python-3.13"]).values())
    assert re.search(r"^pyspark==", kept, re.MULTILINE)


def test_an_interpreter_is_found_by_its_version(lines: Any) -> None:
    """The present version is found, and an unknown one is not."""
    here = "{}.{}".format(*sys.version_info)
    assert lines.find_python(here) is not None
    assert lines.find_python("3.99") is None


def test_a_name_that_is_no_line_is_refused(lines: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The command runs no tests and lists the lines."""
    assert lines.main(["spark-1.6"]) == 2
    assert "there are spark-4.0, spark-4.2" in capsys.readouterr().out


def test_a_line_that_is_not_run_has_not_passed(
    lines: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said to be not run, and who named it is told by the exit code."""
    monkeypatch.setattr(lines, "LINES", {"python-3.99": lines.Line((), python="3.99")})
    assert lines.main([]) == 0
    assert lines.main(["python-3.99"]) == 1
    shown = "python-3.99  not run this machine has no Python 3.99"
    assert capsys.readouterr().out.splitlines() == ["", shown] * 2
