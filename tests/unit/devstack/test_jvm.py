from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.clock import Deadline
from headrace.devstack import Blueprint, jvm, kafka
from headrace.devstack.errors import LocalStackError
from headrace.devstack.java import Java
from headrace.devstack.server import PortBook


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of pyspark's, with three jars."""
    for name in ("zookeeper-3.9.3.jar", "zookeeper-jute-3.9.3.jar", "commons-io-2.18.0.jar"):
        (tmp_path / name).touch()
    monkeypatch.setattr(jvm, "pyspark_jars", lambda: tmp_path)
    return tmp_path


def test_jars_are_picked_by_name(jars: Path) -> None:
    """A prefix picks its jar in any version, and no other jar that begins alike."""
    assert jvm.pick_jars(["zookeeper-"]) == [jars / "zookeeper-3.9.3.jar"]


def test_a_jar_that_only_newer_lines_have_is_picked_where_it_is(jars: Path) -> None:
    """Without it the class path stays short."""
    newer = ("commons-io-", "netty-codec-base-")
    assert jvm.pick_jars(["zookeeper-"], where_there=newer) == [
        jars / "zookeeper-3.9.3.jar",
        jars / "commons-io-2.18.0.jar",
    ]


def test_a_missing_jar_widens_the_class_path_to_all(jars: Path) -> None:
    """When one prefix has no jar, the whole folder is the class path."""
    assert jvm.pick_jars(["zookeeper-", "renamed-"]) == [jars / "*"]


def test_pyspark_carries_every_jar_that_is_picked() -> None:
    """The installed pyspark has the jars of ZooKeeper's short class path."""
    assert "*" not in {jar.name for jar in jvm.pick_jars(["zookeeper-", *jvm.LOGGING_JARS])}


def test_no_java_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java the error names the version, the package and the variable."""
    monkeypatch.setattr(jvm, "find_java", lambda **_: None)
    jvm.require_java.cache_clear()
    with pytest.raises(LocalStackError, match=r"Java 17.*openjdk-17-jre-headless.*JAVA_HOME"):
        jvm.require_java()


def test_a_command_has_heap_class_path_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line carries what it was given, main class and arguments last."""
    monkeypatch.setattr(jvm, "require_java", lambda: Java(Path("/j/bin/java"), 17))
    command = jvm.java_command("a.Main", ["x"], class_path=[Path("/1.jar")], heap="9m")
    assert command[:2] == ["/j/bin/java", "-Xmx9m"]
    assert command[-4:] == ["-cp", "/1.jar", "a.Main", "x"]


@pytest.mark.parametrize("short_lived", [True, False])
def test_short_lived_brokers_are_compiled_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, short_lived: bool
) -> None:
    """Others are compiled well, as measurements need it."""
    monkeypatch.setattr(jvm, "require_java", lambda: Java(Path("/j/bin/java"), 17))
    monkeypatch.setattr(kafka, "kafka_jars", list)
    ports = PortBook(tmp_path / "ports.json")
    blueprint = Blueprint(brokers=2, short_lived=short_lived)
    for broker in blueprint.kafka_brokers(tmp_path, ports):
        broker.directory.mkdir()
        (broker.directory / "formatted").touch()
        command = broker._command(Deadline.after(1))
        assert ("-XX:TieredStopAtLevel=1" in command) is short_lived
