"""Stops of real daemons while something is missing, hangs or is not done yet."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.devstack import KafkaBroker
from headrace.devstack.server import LOOPBACK, free_port
from tests.brokers import Broker
from tests.integration.daemon.rig import WAIT, Site, eventually
from tests.integration.daemon.supervisor import Supervisor
from tests.integration.outages.cable import Cable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from tests.integration.daemon.rig import Daemon

#: Seconds that a stop has where it uses them up, and where it does not, on a busy machine.
LIMIT, AMPLE = 6.0, 40.0

#: Members that are stopped and started again, one after the other.
TURNS = 8

#: Seconds beside those for the process's end.
MARGIN = 20.0


@pytest.fixture
def cable(zookeeper_hosts: str) -> Iterator[Cable]:
    """The way to ZooKeeper, which a test may cut."""
    cable = Cable(int(zookeeper_hosts.rpartition(":")[2]))
    yield cable
    cable.close()


@pytest.fixture
def frozen(
    zookeeper_hosts: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> Iterator[tuple[Site, KafkaBroker]]:
    """A site on a broker of its own, which the test may freeze."""
    server = KafkaBroker(tmp_path_factory.mktemp("kafka"), short_lived=True)
    server.start()
    site = Site(Broker(server.address), zookeeper_hosts, tmp_path)
    yield site, server
    server.resume()
    site.close()
    server.kill()


def _document(
    site: Site, function: str = "keep", *, limit: float = AMPLE, **channel: Any
) -> dict[str, Any]:
    return {**site.document(function, **channel), "shutdown_timeout": f"{limit:.0f}s"}


def _stopped(daemon: Daemon) -> int:
    """Ask for a stop, and return the exit code; the deadline has to be kept."""
    daemon.signal(signal.SIGTERM)
    code = daemon.running.wait(float(daemon.document["shutdown_timeout"][:-1]) + MARGIN)
    assert "Traceback" not in daemon.text()
    return code


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Cable.cut, id="silent", marks=pytest.mark.slow),
        pytest.param(Cable.break_off, id="refusing", marks=pytest.mark.slow),
    ],
)
def test_a_stop_without_zookeeper_commits_and_names_the_session_left(
    site: Site, cable: Cable, fault: Any
) -> None:
    """Within the lease the batch that is out is finished; exit 5, and the next start goes on."""
    document = _document(site, "dawdle", limit=LIMIT)
    document["zookeeper"] |= {"hosts": cable.address, "session_timeout": "20s"}
    site.broker.produce(site.partition(0), b"first")
    daemon = site.daemon(document).start()
    eventually(lambda: daemon.metric("headrace_partitions", channel="main", state="running"))
    fault(cable)
    assert _stopped(daemon) == 5
    assert site.seen() == ["first"]
    assert "the ZooKeeper session" in str(daemon.wait_event("shutdown_timed_out")["unfinished"])
    cable.mend()
    again = site.daemon({**document, "shutdown_timeout": f"{AMPLE:.0f}s"}).start()
    again.wait_event("zookeeper_previous_session_closed")
    again.wait_event("partition_claimed")
    assert _stopped(again) == 0


def test_a_stop_without_kafka_gives_back_and_names_the_missing_commit(
    frozen: tuple[Site, KafkaBroker],
) -> None:
    """Exit 5 by the deadline, with the offset named; no node is left, so that others can go on."""
    site, server = frozen
    site.broker.produce(site.partition(0), b"first")
    daemon = site.daemon(_document(site, "dawdle", limit=LIMIT, commit_interval="10s")).start()
    eventually(lambda: site.seen() == ["first"])
    server.pause(Deadline.after(WAIT))
    assert _stopped(daemon) == 5
    left = daemon.wait_event("shutdown_timed_out")["unfinished"]
    assert any(f"{site.partition(0)}: commit of offset 1" in thing for thing in left)
    assert site.nodes() == []


@pytest.mark.parametrize("mode", ["hold", "drain"])
def test_a_stop_while_a_pause_begins(site: Site, mode: str) -> None:
    """The batch that the pause waits for is finished and committed, and the exit code is 0."""
    site.broker.produce(site.partition(0), b"first")
    daemon = site.daemon(_document(site, mode)).start()
    daemon.wait_event("channel_paused")
    assert site.seen() == []
    assert _stopped(daemon) == 0
    assert site.seen() == ["first"]
    assert site.offsets() == [1, 0]
    assert site.nodes() == []


@pytest.mark.parametrize("mode", ["hold", "drain"])
def test_a_stop_during_a_pause(site: Site, mode: str) -> None:
    """A record that rests stays where it is: the second one is left for the next start."""
    site.broker.produce(site.partition(0), b"first", b"second")
    document = _document(site, mode, batch={"linger": 0, "max_records": 1})
    daemon = site.daemon(document).start()
    eventually(lambda: site.offsets() == [1, 0])
    if mode == "drain":
        eventually(lambda: site.nodes() == [])
    assert _stopped(daemon) == 0
    assert site.seen() == ["first"]
    assert site.offsets() == [1, 0]
    assert site.nodes() == []


def test_a_stop_while_a_reload_drains_a_channel(site: Site, tmp_path: Path) -> None:
    """The batch that the reload waits for is committed; systemd heard of the reload; exit 0."""
    supervisor = Supervisor(tmp_path, watchdog=60.0)
    document = _document(site, "dawdle", batch={"linger": 0, "max_records": 2})
    document["reload"] = {"watch": False}
    daemon = supervisor.watch(site.daemon(document)).start()
    supervisor.wait("READY=1")
    site.broker.produce(site.partition(0), b"first", b"second", b"third")
    eventually(site.seen)
    document["channels"]["main"]["sink"] = "functions:keep"
    (site.directory / f"{daemon.name}.yaml").write_text(json.dumps(document), encoding="utf-8")
    daemon.signal(signal.SIGHUP)
    supervisor.wait("RELOADING=1\nMONOTONIC_USEC=")
    assert _stopped(daemon) == 0
    supervisor.wait("STOPPING=1")
    supervisor.close()
    assert site.seen() == ["first", "second", "third"][: len(site.seen())]
    assert site.offsets() == [len(site.seen()), 0]
    assert site.nodes() == []


def test_a_stop_before_zookeeper_was_reached(site: Site) -> None:
    """The start waits for a server that is not there; exit code 0 at once."""
    document = _document(site)
    document["zookeeper"]["hosts"] = f"{LOOPBACK}:{free_port()}"
    daemon = site.daemon(document).start()
    daemon.wait_event("metrics_served")
    assert _stopped(daemon) == 0
    assert daemon.wait_event("stopped_during_start")["signal"] == "SIGTERM"


def test_a_second_signal_ends_a_stop_that_hangs_without_servers(site: Site, cable: Cable) -> None:
    """It does not wait for ZooKeeper either."""
    document = site.document()
    document["zookeeper"]["hosts"] = cable.address
    daemon = site.daemon(document).start()
    daemon.wait_event("partition_claimed")
    cable.cut()
    daemon.signal(signal.SIGINT)
    daemon.wait_event("stopping")
    daemon.signal(signal.SIGINT)
    assert daemon.wait() == 128 + signal.SIGINT


def test_a_log_without_a_reader_holds_up_nothing(site: Site) -> None:
    """Records are delivered and a stop keeps its deadline, though standard error is a full pipe."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 1000)
    os.set_blocking(writer, True)
    site.broker.produce(site.partition(0), b"first")
    daemon = site.daemon(_document(site))
    daemon.standard_error = writer
    daemon.start()
    eventually(lambda: site.offsets() == [1, 0])
    assert _stopped(daemon) == 0
    assert site.nodes() == []
    os.close(reader)
    os.close(writer)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_members_that_are_restarted_in_turn_hear_each_signal(
    broker: Broker, zookeeper_hosts: str, tmp_path: Path
) -> None:
    """Four members share 64 partitions in each of three channels, and one always comes or goes.

    Each stops in order, and no record is lost or doubled.
    """
    site = Site(broker, zookeeper_hosts, tmp_path, partitions=64)
    try:
        members = [_member(site, number).start() for number in range(4)]
        for round_ in range(TURNS):
            stopped = members.pop(0)
            stopped.wait_event("partition_claimed", AMPLE)
            for number in range(64):
                site.broker.produce(site.partition(number), b"%d-%d" % (number, round_))
            assert _stopped(stopped) == 0
            assert stopped.wait_event("stopping")["signal"] == "SIGTERM"
            members.append(_member(site, round_ % 4).start())
        values = [f"{number}-{round_}" for number in range(64) for round_ in range(TURNS)] * 3
        eventually(lambda: len(site.seen()) >= len(values))
        for member in members:
            assert _stopped(member) == 0
        assert sorted(site.seen()) == sorted(values)
    finally:
        site.close()


def _member(site: Site, number: int) -> Daemon:
    """Return a member of three groups that read the same topic."""
    document = _document(site)
    main = document["channels"]["main"]
    document["channels"] = {
        name: {**main, "group": f"{site.group}.{name}"} for name in ("a", "b", "c")
    }
    state = str(site.directory / f"state.{number}")
    return site.daemon({**document, "instance_id": f"member-{number}", "state_dir": state})


@pytest.mark.slow
def test_a_signal_is_heard_while_the_main_thread_hangs(site: Site) -> None:
    """The process ends by itself, with exit code 5, and says where its main thread is."""
    site.broker.produce(site.partition(0), b"first")
    daemon = site.daemon(_document(site, "freeze_the_main_loop", limit=LIMIT)).start()
    eventually(lambda: site.seen() == ["first"])
    # the look around that was under way when the function ran comes to its end
    eventually(lambda: _main_calls(daemon)[-1].endswith(" <lambda>"))
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 5
    hung = daemon.wait_event("shutdown_hung")
    assert hung["signal"] == "SIGTERM"
    assert any("functions.py" in call for call in hung["calls"])


@pytest.mark.slow
def test_a_start_that_is_called_off_without_servers(site: Site, cable: Cable) -> None:
    """A second signal does not wait for its end; without a session there is nothing to end."""
    document = _document(site)
    document["zookeeper"] |= {"hosts": cable.address, "session_timeout": "20s"}
    document["kafka"]["bootstrap_servers"] = f"{LOOPBACK}:{free_port()}"
    daemon = site.daemon(document).start()
    daemon.wait_event("zookeeper_session_started")
    # before it there is no channel that the stop would have to end
    eventually(lambda: "starting" in _states(daemon))
    cable.cut()
    daemon.signal(signal.SIGTERM)
    eventually(lambda: "stopping" in _states(daemon))
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 128 + signal.SIGTERM
    other = {**document, "instance_id": "two", "shutdown_timeout": "10m"}
    again = site.daemon(other).start()
    again.wait_event("metrics_served")
    again.signal(signal.SIGTERM)
    assert again.wait() == 0


def _main_calls(daemon: Daemon) -> list[str]:
    """Ask for the stacks, and return the calls of the main thread."""
    before = len(_main_stacks(daemon))
    daemon.signal(signal.SIGUSR1)
    eventually(lambda: len(_main_stacks(daemon)) > before)
    return _main_stacks(daemon)[-1]


def _main_stacks(daemon: Daemon) -> list[list[str]]:
    dumped = [e for e in daemon.events() if e["event"] == "thread_stack"]
    return [e["calls"] for e in dumped if e["thread"] == "MainThread"]


def _states(daemon: Daemon) -> list[str]:
    return [e["state"] for e in daemon.events() if e["event"] == "channel_state_changed"]
