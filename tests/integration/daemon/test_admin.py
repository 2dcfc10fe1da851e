"""The admin API of a real daemon."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx

from headrace.devstack.server import LOOPBACK, free_port
from tests.integration.daemon.rig import WAIT, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.daemon.rig import Daemon, Site


def _folder(site: Site) -> Path:
    return site.directory / "state" / "one"


def _client(site: Site, daemon: Daemon) -> httpx.Client:
    """Return a client with what the daemon wrote down for its commands."""
    daemon.wait_event("admin_served")
    address = json.loads((_folder(site) / "admin.json").read_text())
    token = (_folder(site) / "admin-token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=address["url"], headers=headers, timeout=WAIT)


def _status(client: httpx.Client) -> Any:
    return client.get("/api/v1/status").raise_for_status().json()


def test_the_api_answers_from_the_start_to_the_end(site: Site) -> None:
    """It is live before it is ready, shows all partitions, and goes with the process."""
    daemon = site.run()
    with _client(site, daemon) as client:
        assert client.get("/health/live").status_code == 200
        eventually(lambda: client.get("/health/ready").status_code == 200)
        site.broker.produce(site.partition(0), b"a", b"b", b"c")

        def read() -> bool:
            (channel,) = _status(client)["channels"]
            where = {p["partition"]: p["committed"] for p in channel["partitions"]}
            return where == {0: 3, 1: 0}

        eventually(read)
        assert client.get("/api/v1/members").json()["groups"][0]["group"] == site.group
        assert "headrace_position" in client.get("/metrics").text
        assert stat.S_IMODE((_folder(site) / "admin-token").stat().st_mode) == 0o600
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
    assert not (_folder(site) / "admin.json").exists()
    assert "Traceback" not in daemon.text()


def test_commands_pause_and_stop_a_daemon(site: Site) -> None:
    """A pause is true when the command ends, the log says whose it was, and a stop is orderly."""
    daemon = site.run()
    daemon.wait_event("controller_started")
    paused = _headrace(daemon, "pause", "--reason", "lunch")
    assert (paused.returncode, paused.stdout) == (0, "main is paused\n"), paused.stderr
    site.broker.produce(site.partition(0), b"a")
    assert "lunch" in _headrace(daemon, "status").stdout
    assert site.seen() == []
    assert _headrace(daemon, "resume").returncode == 0
    eventually(lambda: site.seen() == ["a"])
    change = daemon.wait_event("admin_change")
    assert (change["action"], change["proof"], change["outcome"]) == ("pause", "token", "done")
    assert _headrace(daemon, "stop").returncode == 0
    assert daemon.wait() == 0
    assert _headrace(daemon, "status").returncode == 3


def test_a_poison_record_is_skipped_while_the_daemon_runs(site: Site) -> None:
    """The partition that it holds up goes on at once, without it, and it is counted."""
    site.broker.produce(site.partition(0), b"a", b"poison", b"c")
    stuck = {"backoff": "1h", "max_backoff": "1h"}
    daemon = site.run("refuse_poison", retry=stuck)
    daemon.wait_event("processor_error")
    place = f"{site.topic}:0:1"
    other = _headrace(daemon, "skip", f"{site.topic}:0:2", "--reason", "no JSON")
    assert (other.returncode, "has the records 1 to 1; 2 is none" in other.stderr) == (1, True)
    shown = _headrace(daemon, "status")
    assert "record 1 failed 1 times" in " ".join(shown.stdout.split())
    skipped = _headrace(daemon, "skip", place, "--reason", "no JSON")
    assert skipped.returncode == 0, skipped.stderr
    assert skipped.stdout.startswith(f"{place} is left out from now on, of record 1 that failed: ")
    eventually(lambda: site.offsets()[0] == 3)
    assert site.seen() == ["a", "c"]
    assert daemon.wait_event("skip_applied")["offset"] == 1
    again = _headrace(daemon, "skip", f"{site.topic}:0:1", "--reason", "no JSON")
    assert (again.returncode, "3 is committed" in again.stderr) == (1, True)


def test_a_paused_daemon_goes_on_where_it_is_sent(site: Site) -> None:
    """A seek is refused while the channel runs; while it rests the group's offset moves."""
    site.broker.produce(site.partition(0), b"a", b"b", b"c")
    daemon = site.run()
    eventually(lambda: site.offsets() == [3, 0])
    place = f"{site.topic}:0:1"
    assert _headrace(daemon, "seek", place).returncode == 1
    assert _headrace(daemon, "pause").returncode == 0
    moved = _headrace(daemon, "seek", place)
    assert (moved.returncode, moved.stdout) == (0, f"{site.topic}:0 from 3 to 1\n"), moved.stderr
    assert site.offsets() == [1, 0]
    assert site.seen() == ["a", "b", "c"]
    assert _headrace(daemon, "resume").returncode == 0
    eventually(lambda: site.offsets() == [3, 0])
    assert site.seen() == ["a", "b", "c", "b", "c"]


def test_a_reload_applies_a_hot_value_and_refuses_a_bad_file(site: Site) -> None:
    """A hot value is in effect when the command ends; a bad file is refused and changes nothing."""
    daemon = site.run(batch={"linger": 0, "max_records": 10})
    daemon.wait_event("controller_started")
    channel = daemon.document["channels"]["main"]
    file = daemon.directory / f"{daemon.name}.yaml"
    channel["batch"]["max_records"] = 20
    file.write_text(json.dumps(daemon.document))
    assert _headrace(daemon, "reload").returncode == 0
    applied = json.loads(_headrace(daemon, "status", "--json").stdout)["config"]
    assert (applied["pending"], applied["problems"]) == ([], [])
    good = file.read_text()
    channel["batch"]["max_records"] = "many"
    file.write_text(json.dumps(daemon.document))
    with _client(site, daemon) as client:
        answer = client.post("/api/v1/reload", json={}).raise_for_status().json()
        assert answer["outcome"] == "rejected"
        assert "max_records" in answer["problems"][0]
        found = client.get("/api/v1/config").json()
    assert found["applied"]["channels"]["main"]["batch"]["max_records"] == 20
    file.write_text(good)


def test_a_stop_is_heard_during_the_start(site: Site) -> None:
    """A daemon that waits for Kafka in its start is stopped by a command, and exits with 0."""
    document = site.document()
    document["zookeeper"] = {"hosts": f"{LOOPBACK}:{free_port()}", "connect_timeout": "60s"}
    daemon = site.daemon(document).start()
    daemon.wait_event("admin_served")
    assert _headrace(daemon, "stop").returncode == 0
    assert daemon.wait() == 0
    daemon.wait_event("stopped_during_start")


def _headrace(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    config = str(daemon.directory / f"{daemon.name}.yaml")
    command = [sys.executable, "-m", "headrace", *arguments, "-c", config]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)


def test_a_second_process_of_the_name_takes_nothing_from_the_first(site: Site) -> None:
    """It is refused before it writes where its own API would be."""
    first = site.run()
    with _client(site, first) as client:
        second = site.run()
        assert second.wait() == 3
        assert _status(client)["process"]["pid"] == first.running.pid
        assert (_folder(site) / "admin.json").exists()


def test_records_are_tapped_as_they_pass(site: Site) -> None:
    """Live, masked, and while the channel goes on; a stop of the process ends the tap by itself."""
    daemon = site.daemon({**site.document(), "admin": {"redact": ["value.pin"]}}).start()
    daemon.wait_event("partition_claimed")
    config = str(daemon.directory / f"{daemon.name}.yaml")
    command = [sys.executable, "-m", "headrace", "tap", "-c", config, "--json"]
    with subprocess.Popen(
        [*command, "--rate", "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as tap:
        daemon.wait_event("tap_opened")
        for number in range(20):
            site.broker.produce(site.partition(0), b'{"n": %d, "pin": 1234}' % number)
        assert tap.stdout is not None
        found = [json.loads(tap.stdout.readline()) for _ in range(20)]
        assert [json.loads(each["value"]) for each in found] == [
            {"n": number, "pin": "***"} for number in range(20)
        ]
        eventually(lambda: site.offsets()[0] == 20)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        _, said = tap.communicate(timeout=WAIT)
    assert tap.returncode == 0
    assert "20 of 20 records that passed main shown" in said
    closed = daemon.wait_event("tap_closed")
    assert (closed["shown"], closed["dropped"]) == (20, 0)


def test_a_tap_that_is_not_read_holds_up_nothing(site: Site) -> None:
    """Records that the tap's reader does not take are dropped and counted; all are delivered."""
    count = 1000
    daemon = site.run()
    with _client(site, daemon) as client:
        daemon.wait_event("partition_claimed")
        with client.stream("GET", "/api/v1/channels/main/tap?rate=1000") as answer:
            assert answer.status_code == 200
            daemon.wait_event("tap_opened")
            # nobody reads the answer
            for start in range(0, count, 100):
                site.broker.produce(site.partition(0), *[b"x" * 20_000] * 100)
                eventually(lambda at=start: (site.offsets()[0] or 0) >= at)
            eventually(lambda: site.offsets()[0] == count)
        closed = daemon.wait_event("tap_closed")
        assert closed["passed"] == count
        assert closed["shown"] < count
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
