from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.devstack import java

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_usual_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_IN_ROOT", ())


def _install(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_the_major_version_is_read(said: str, version: int | None) -> None:
    """The notations of old and new releases are understood, and nonsense is no version."""
    assert java.parse_version(said) == version


def test_java_home_comes_first(tmp_path: Path) -> None:
    """With a good Java in both places, the one in JAVA_HOME is taken."""
    chosen = _install(tmp_path / "home", "17.0.1")
    other = _install(tmp_path / "other", "21.0.1")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)})
    assert found == java.Java(chosen, 17)


def test_too_old_a_java_is_passed_over(tmp_path: Path) -> None:
    """A Java 11 in JAVA_HOME does not hide the Java 17 on the PATH."""
    _install(tmp_path / "old", "11.0.20")
    good = _install(tmp_path / "good", "17.0.1")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(good.parent)})
    assert found == java.Java(good, 17)


def test_the_oldest_good_java_of_the_usual_folders_is_taken(tmp_path: Path) -> None:
    """Among installed versions the lowest that will do is preferred."""
    for version in ("21.0.1", "17.0.9", "11.0.1"):
        _install(tmp_path / ".jdks" / f"temurin-{version}", version)
    found = java.find_java({"HOME": str(tmp_path), "PATH": ""})
    assert found is not None
    assert found.version == 17
    assert found.home == tmp_path / ".jdks" / "temurin-17.0.9"


def test_a_later_java_is_found_where_one_is_asked_for(tmp_path: Path) -> None:
    """A Java that is good for Kafka does not hide the later one that the registry takes."""
    _install(tmp_path / "good", "17.0.1")
    later = _install(tmp_path / ".jdks" / "temurin-25", "25")
    places = {"PATH": str(tmp_path / "good" / "bin"), "HOME": str(tmp_path)}
    found = java.find_java(places, minimum=21)
    assert found == java.Java(later, 25)


def test_a_java_that_cannot_run_is_no_java(tmp_path: Path) -> None:
    """A file that fails to run is passed over, and without another there is none."""
    broken = _install(tmp_path / "broken", "17")
    broken.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    assert java.find_java({"JAVA_HOME": str(tmp_path / "broken"), "PATH": ""}) is None
