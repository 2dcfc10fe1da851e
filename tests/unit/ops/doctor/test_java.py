from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.core.findings import Level
from headrace.devstack.java import Java
from headrace.ops.doctor import spark
from headrace.ops.doctor.spark import check_jars, check_java
from tests.unit.ops.doctor.support import bad, config, only

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder as JAVA_HOME names one, whose java is not run."""
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "bin" / "java").write_text("")
    return tmp_path / "jdk"


@pytest.mark.parametrize(
    ("version", "level"),
    [(None, Level.ERROR), (11, Level.ERROR), (17, Level.OK), (21, Level.OK), (25, Level.WARNING)],
)
def test_the_java_of_java_home_has_to_do(
    home: Path, monkeypatch: pytest.MonkeyPatch, version: int | None, level: Level
) -> None:
    """One that cannot be run, or is too old, is an error; one that is too new a warning."""
    monkeypatch.setattr(spark, "java_version", lambda _: version)
    monkeypatch.setattr(spark, "find_java", lambda _: None)
    (found,) = check_java({"JAVA_HOME": str(home)})
    assert found.level is level


def test_a_java_elsewhere_is_recommended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice gives the JAVA_HOME with which Spark's launcher finds it."""
    monkeypatch.setattr(spark, "find_java", lambda _: Java(home / "bin" / "java", 17))
    found = only(check_java({"PATH": ""}))
    assert "no java in PATH" in found.seen
    assert f"JAVA_HOME={home}" in found.advice


def test_without_any_java_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice is a command where there is nothing to point at."""
    monkeypatch.setattr(spark, "find_java", lambda _: None)
    found = only(check_java({"JAVA_HOME": "/nowhere"}))
    assert "no java in JAVA_HOME" in found.seen
    assert "openjdk-17-jre-headless" in found.advice


def test_jars_have_to_exist_and_to_fit(tmp_path: Path) -> None:
    """A missing jar, and a connector of another Spark, are errors; others are left to Spark."""
    (tmp_path / "there.jar").write_text("")
    properties = {
        "spark.jars": f"{tmp_path}/there.jar, {tmp_path}/missing.jar, s3://bucket/x.jar",
        "spark.jars.packages": "org.apache.spark:spark-avro_2.13:3.5.1,org.postgresql:pg:42.7.4",
    }
    found = bad(check_jars(config(tmp_path, spark={"properties": properties}).spark, "4.0.5"))
    assert ["missing.jar" in found[0].seen, "spark-avro" in found[1].seen] == [True, True]
    assert found[1].advice == "take org.apache.spark:spark-avro_2.13:4.0.0"
    assert not list(check_jars(config(tmp_path).spark, "4.0.5"))
