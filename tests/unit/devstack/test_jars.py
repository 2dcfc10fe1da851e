from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.devstack import jars
from headrace.devstack.errors import LocalStackError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.devstack.jars import Coordinate

_CONTENTS = {"a.jar": b"first", "b.jar": b"second"}


class FakeMaven:
    """Stands in for Ivy: puts files into the folder and counts how often."""

    def __init__(self) -> None:
        self.contents = dict(_CONTENTS)
        self.coordinates: list[Coordinate] = []

    @property
    def fetched(self) -> int:
        """How often it was asked."""
        return len(self.coordinates)

    def fetch(
        self,
        coordinate: Coordinate,
        folder: Path,
        *,
        needs: bool,
        report: Callable[[str], None],
        deadline: Deadline,
    ) -> None:
        """Fetch at once."""
        del needs, deadline
        self.coordinates.append(coordinate)
        (folder / "jars").mkdir(exist_ok=True)
        for name, content in self.contents.items():
            (folder / "jars" / name).write_bytes(content)
            report(f"fetched {name}")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and sums that pin two small jars."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in _CONTENTS.items()}
    monkeypatch.setattr(jars, "pinned_sums", lambda _: sums)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADRACE_KAFKA_VERSION", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def maven(monkeypatch: pytest.MonkeyPatch, cache: Path) -> FakeMaven:
    """A source of jars that needs no network."""
    del cache  # only to come after it
    fake = FakeMaven()
    monkeypatch.setattr(jars, "fetch", fake.fetch)
    return fake


def _ignore(_: str) -> None:
    """Take a report and do nothing."""


def test_jars_are_fetched_once(cache: Path, maven: FakeMaven) -> None:
    """The second call finds the jars where the first one put them."""
    first = jars.kafka_jars(_ignore)
    assert first == jars.kafka_jars(_ignore)
    assert [path.read_bytes() for path in first] == [b"first", b"second"]
    assert first[0].is_relative_to(cache)
    assert maven.fetched == 1


@pytest.mark.parametrize("harm", ["altered", "deleted"])
def test_a_damaged_cache_is_mended(maven: FakeMaven, harm: str) -> None:
    """A jar that was altered or deleted in the cache is noticed, and all are fetched again."""
    victim = jars.kafka_jars(_ignore)[0]
    if harm == "altered":
        victim.write_bytes(b"other")
    else:
        victim.unlink()
    assert jars.kafka_jars(_ignore)[0].read_bytes() == b"first"
    assert maven.fetched == 2


def test_jars_that_are_not_the_pinned_ones_are_refused(cache: Path, maven: FakeMaven) -> None:
    """A jar with another sum is an error that names it, and nothing of it stays in the cache."""
    maven.contents["b.jar"] = b"tampered"
    with pytest.raises(LocalStackError, match=r"b\.jar"):
        jars.kafka_jars(_ignore)
    assert [path.name for path in cache.iterdir()] == ["kafka-4.2.lock"]


def test_an_interrupted_fetch_is_cleared_away(cache: Path, maven: FakeMaven) -> None:
    """A half-filled folder of a killed process is removed and does no harm."""
    (cache / ".kafka-4.2.2-killed" / "jars").mkdir(parents=True)
    jars.kafka_jars(_ignore)
    assert sorted(path.name for path in cache.iterdir()) == ["kafka-4.2.2", "kafka-4.2.lock"]
    assert maven.fetched == 1


def test_two_processes_do_not_fetch_at_once(cache: Path, maven: FakeMaven) -> None:
    """While another holds the lock nothing is fetched; the error names the lock's file."""
    cache.mkdir()
    told: list[str] = []
    with (
        jars._locked(jars.BROKERS["4.2.2"], cache / "kafka-4.2.lock", _ignore, Deadline.after(5)),
        pytest.raises(LocalStackError, match=r"kafka-4\.2\.lock"),
    ):
        jars.kafka_jars(told.append, Deadline.after(0))
    assert told == ["Kafka jars: waiting for another process that is fetching them"]
    assert maven.fetched == 0


def test_jars_fetched_during_the_wait_for_the_lock_are_used(
    cache: Path, maven: FakeMaven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jars that became whole while this process waited are not fetched a second time."""
    answers = [["a.jar"], []]
    monkeypatch.setattr(jars, "damaged", lambda *_: answers.pop(0))
    assert jars.kafka_jars(_ignore) == [cache / "kafka-4.2.2" / name for name in _CONTENTS]
    assert maven.fetched == 0


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HEADRACE_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, Path("/c")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/headrace")),
        ({}, Path.home() / ".cache" / "headrace"),
    ],
)
def test_the_cache_is_the_users(environment: dict[str, str], folder: Path) -> None:
    """The named folder wins over the XDG one, and that over the one in the home folder."""
    assert jars.cache_folder(environment) == folder


@pytest.mark.parametrize(
    ("version", "count"),
    [("4.2.2", 45), ("4.3.0", 45), ("4.0.1", 41), ("3.9.2", 55)],
)
def test_every_jar_of_a_broker_is_pinned(version: str, count: int) -> None:
    """The package carries a SHA-256 sum for each jar, Kafka's own among them."""
    sums = jars.pinned_sums(jars.BROKERS[version])
    assert f"org.apache.kafka_kafka_2.13-{version}.jar" in sums
    assert len(sums) == count
    assert {len(digest) for digest in sums.values()} == {64}


@pytest.mark.parametrize(
    ("named", "folder"),
    [("3.9.2", "kafka-3.9.2"), ("4.0.1", "kafka-4.0.1"), ("", "kafka-4.2.2")],
)
def test_the_broker_is_of_the_version_that_is_named(
    cache: Path, maven: FakeMaven, monkeypatch: pytest.MonkeyPatch, named: str, folder: str
) -> None:
    """Each version has a folder of its own in the cache; without a name it is the first."""
    monkeypatch.setenv("HEADRACE_KAFKA_VERSION", named)
    assert {path.parent for path in jars.kafka_jars(_ignore)} == {cache / folder}
    assert [str(each) for each in maven.coordinates] == [
        f"org.apache.kafka:kafka_2.13:{folder.removeprefix('kafka-')}"
    ]


def test_a_broker_of_another_version_is_refused(
    maven: FakeMaven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the variable, its value and the versions that there are."""
    monkeypatch.setenv("HEADRACE_KAFKA_VERSION", "2.8.0")
    with pytest.raises(
        LocalStackError, match=r"HEADRACE_KAFKA_VERSION: .*2\.8\.0.* 4\.2\.2, 4\.3\.0"
    ):
        jars.kafka_jars(_ignore)
    assert maven.fetched == 0


@pytest.mark.parametrize("wanted", jars.CONNECTORS.values(), ids=lambda wanted: wanted.name)
def test_every_jar_of_a_connector_is_pinned(wanted: jars.JarSet) -> None:
    """There is a sum for each of a connector's artifacts, and for nothing else."""
    sums = jars.pinned_sums(wanted)
    names = {f"{each.organisation}_{each.module}-{each.revision}.jar" for each in wanted.artifacts}
    assert sums.keys() == names
    assert {len(digest) for digest in sums.values()} == {64}


@pytest.mark.parametrize(
    ("installed", "name"),
    [
        ("4.0.5", "spark-kafka-4.0.0"),
        ("4.1.4", "spark-kafka-4.0.0"),
        ("4.2.1", "spark-kafka-4.2.0"),
        ("4.3.0", "spark-kafka-4.2.0"),
        (None, "spark-kafka-4.2.0"),
    ],
)
def test_the_connector_is_of_the_pyspark_installed(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, name: str
) -> None:
    """It is of the same line, else of the one before; without pyspark it is the newest."""

    def version(package: str) -> str:
        assert package == "pyspark"
        if installed is None:
            raise metadata.PackageNotFoundError(package)
        return installed

    monkeypatch.setattr(metadata, "version", version)
    assert jars.connector_set().name == name


def test_the_set_up_is_told_in_one_line_why_there_are_no_jars(
    cache: Path, maven: FakeMaven, capsys: pytest.CaptureFixture[str]
) -> None:
    """The set-up's command ends with 1 and one line, or with 0 after a success."""
    maven.contents["b.jar"] = b"tampered"
    assert jars.main("kafka") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "b.jar" in last
    maven.contents["b.jar"] = _CONTENTS["b.jar"]
    assert jars.main("kafka") == 0
    assert (cache / "kafka-4.2.2" / "b.jar").exists()
