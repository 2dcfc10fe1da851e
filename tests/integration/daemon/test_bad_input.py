"""Every wrong input ends the process with a code, a sentence, and nothing left behind."""

from __future__ import annotations

import fcntl
import socket
from typing import TYPE_CHECKING, Any

import pytest

from headrace.devstack.server import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.daemon.rig import Site


def _unknown_key(document: dict[str, Any]) -> None:
    document["channels"]["main"]["topic"] = document["channels"]["main"].pop("topics")


def _unknown_property(document: dict[str, Any]) -> None:
    document["kafka"]["properties"] = {"fetch.wait.maximum.ms": 10}


def _no_kafka(document: dict[str, Any]) -> None:
    document["kafka"]["bootstrap_servers"] = f"{LOOPBACK}:{free_port()}"


def _no_zookeeper(document: dict[str, Any]) -> None:
    document["zookeeper"] = {"hosts": f"{LOOPBACK}:{free_port()}", "connect_timeout": "1s"}


def _no_topic(document: dict[str, Any]) -> None:
    document["channels"]["main"]["topics"] += ["no.such.topic"]


def _sink(function: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["channels"]["main"]["sink"] = function

    return change


def _reducer(reducer: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["channels"]["main"] |= {
            "processor": {"type": "spark", "reducer": reducer},
            "sink": "noop",
        }

    return change


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        pytest.param(_unknown_key, 2, ["channels.main.topic", "topics"], id="unknown key"),
        pytest.param(_unknown_property, 2, ["fetch.wait.maximum.ms"], id="unknown property"),
        pytest.param(
            _no_kafka,
            3,
            ["kafka.bootstrap_servers", "127.0.0.1"],
            id="no Kafka",
            marks=pytest.mark.slow,
        ),
        pytest.param(_no_zookeeper, 3, ["zookeeper.hosts", "127.0.0.1"], id="no ZooKeeper"),
        pytest.param(_no_topic, 3, ["no.such.topic", "channels.main.topics"], id="no topic"),
        pytest.param(
            _sink("functions:kepe"), 3, ["kepe", "did you mean functions:keep"], id="no function"
        ),
        pytest.param(_sink("nowhere:keep"), 3, ["nowhere", "python_path"], id="no module"),
        pytest.param(
            _sink("functions:two_arguments"), 3, ["two_arguments", "(record)"], id="arguments"
        ),
        pytest.param(_reducer("nowhere:reduce"), 3, ["nowhere", "python_path"], id="no reducer"),
        pytest.param(_reducer("functions:keep"), 3, ["functions:keep", "df, batch"], id="reducer"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    site: Site, change: Callable[[dict[str, Any]], None], code: int, words: list[str]
) -> None:
    """The exit code and the words say what to fix; no node, lock or session is left."""
    document = site.document()
    change(document)
    daemon = site.daemon(document).start()
    assert daemon.wait() == code
    for word in words:
        assert word in daemon.text()
    assert "Traceback" not in daemon.text()
    assert site.nodes() == []
    assert site.offsets() == [None, None]
    _nothing_is_held(site.directory / "state" / "one")


def test_a_missing_file_is_named(site: Site) -> None:
    """Without a configuration file the exit code is 2 and the path is said."""
    path = site.directory / "absent.yaml"
    daemon = site.daemon({}).start(config=path)
    assert daemon.wait() == 2
    assert str(path) in daemon.text()
    assert "Traceback" not in daemon.text()


def test_a_port_in_use_is_named(site: Site) -> None:
    """The daemon does not start where the metrics cannot be served."""
    with socket.create_server((LOOPBACK, 0)) as taken:
        document = site.document()
        document["metrics"]["port"] = taken.getsockname()[1]
        daemon = site.daemon(document).start()
        assert daemon.wait() == 3
    error = daemon.wait_event("not_started")["error"]
    assert "metrics.port" in error
    assert str(document["metrics"]["port"]) in error
    assert site.nodes() == []


def _nothing_is_held(directory: Path) -> None:
    assert not (directory / "session.json").exists()
    if (directory / "lock").exists():
        with (directory / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
