"""``headrace group`` beside real daemons."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import Deadline
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings
from tests.integration.daemon.rig import WAIT, eventually

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Daemon, Site


class Onlooker:
    """Calls ``headrace group`` for a site."""

    def __init__(self, site: Site, **sections: Any) -> None:
        self.file = site.directory / "onlooker.yaml"
        self.file.write_text(json.dumps(site.document() | sections), encoding="utf-8")
        self.errors = ""

    def command(self, *options: str) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "headrace", "group", "-c", str(self.file), *options]

    def call(self, *options: str, code: int = 0) -> str:
        """Return what it printed; it has to end with ``code``."""
        done = subprocess.run(
            self.command(*options), capture_output=True, text=True, check=False, timeout=WAIT
        )
        self.errors = done.stderr
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout

    def look(self, code: int = 0) -> dict[str, Any]:
        """Return what it says of the one channel."""
        (channel,) = json.loads(self.call("--json", code=code))
        found: dict[str, Any] = channel
        return found


def another(site: Site) -> Daemon:
    """Start a second member."""
    document = site.document()
    state = site.directory / "state.two"
    return site.daemon(document | {"instance_id": "two", "state_dir": str(state)}).start()


def test_a_running_group(site: Site) -> None:
    """Two members, a partition each, with epochs, positions and lag."""
    for number in (0, 1):
        site.broker.produce(site.partition(number), *[b"record"] * 5)
    daemons = site.run(), another(site)
    onlooker = Onlooker(site)

    def settled() -> dict[str, Any] | None:
        found = onlooker.look()
        owners = {each["owner"] for each in found["partitions"]}
        lags = [each["lag"] for each in found["partitions"]]
        return found if owners == {"one", "two"} and lags == [0, 0] else None

    eventually(settled)
    found = onlooker.look()
    assert (found["state"], found["group"], found["errors"]) == ("running", site.group, [])
    assert [(each["name"], each["pid"], each["owned"]) for each in found["members"]] == [
        ("one", daemons[0].running.pid, 1),
        ("two", daemons[1].running.pid, 1),
    ]
    assert [
        (each["state"], each["committed_offset"], each["committed_in"], each["log_end"])
        for each in found["partitions"]
    ] == [("owned", 5, "kafka", 5)] * 2
    assert found["unowned"] == found["pending"] == found["foreign"] == []
    plain = [line.split() for line in onlooker.call().splitlines()]
    assert plain[0][:5] == ["main", "group", site.group, "·", "running"]
    rows = [line[0] for line in plain[1:] if line]
    members = ["member", "one", "two"]
    assert rows == [*members, "partition", f"{site.topic}-0", f"{site.topic}-1"]
    assert onlooker.errors == ""


def test_a_stopped_group(site: Site) -> None:
    """After a stop in order the claims ended cleanly, and what came since is the lag."""
    site.broker.produce(site.partition(0), b"record")
    assert site.daemon(site.document()).start("--until", "latest").wait() == 0
    site.broker.produce(site.partition(0), b"later", b"later")
    found = Onlooker(site).look()
    assert (found["state"], found["members"]) == ("stopped", [])
    first = found["partitions"][0]
    assert (first["owner"], first["last_owner"], first["clean_end"]) == (None, "one", True)
    assert (first["committed_offset"], first["log_end"], first["lag"]) == (1, 3, 2)


def test_a_group_that_never_ran(site: Site) -> None:
    """It is no error, and looking creates nothing."""
    found = Onlooker(site).look()
    assert found["state"] == "never_run"
    assert [each["state"] for each in found["partitions"]] == ["unowned"] * 2
    session = ZooKeeperSession(ZooKeeperSettings(site.zookeeper_hosts))
    session.start()
    assert session.exists(GroupPaths(site.group).root) is None
    assert session.close(Deadline.after(WAIT))
    assert site.offsets() == [None, None]


def test_a_member_of_a_later_version(site: Site) -> None:
    """A later member keeps its partition, shown as foreign; once it is gone, ours takes over."""
    paths, first = GroupPaths(site.group), site.partition(0)
    stranger = ZooKeeperSession(ZooKeeperSettings(site.zookeeper_hosts))
    stranger.start()
    for path in (paths.ids, paths.owners(site.topic)):
        stranger.ensure(path)
    for path in (paths.member("later"), paths.owner(first)):
        stranger.create(path, b'{"version":2}', ephemeral=True)
    site.run()
    onlooker = Onlooker(site)
    eventually(lambda: onlooker.look()["partitions"][1]["owner"] == "one")
    found = onlooker.look()
    assert [each["state"] for each in found["partitions"]] == ["foreign", "owned"]
    assert found["foreign"] == [{"topic": site.topic, "partition": 0, "owner": ""}]
    assert "upgrade this member" in found["members"][0]["problem"]
    assert found["members"][1]["problem"] is None
    assert stranger.close(Deadline.after(WAIT))
    eventually(lambda: onlooker.look()["partitions"][0]["owner"] == "one")


@pytest.mark.slow
def test_servers_that_cannot_be_reached(site: Site) -> None:
    """Exit code 1 and who it is; what the other one knows is shown, also of matched topics."""
    site.broker.produce(site.partition(0), b"record")
    site.run()
    eventually(lambda: site.offsets() == [1, None] or site.offsets() == [1, 0])
    onlooker = Onlooker(site, zookeeper={"hosts": "127.0.0.1:1", "connect_timeout": "1s"})
    found = onlooker.look(code=1)
    assert found["state"] == "unknown"
    assert found["partitions"][0]["committed_offset"] == 1
    assert "ZooKeeper at 127.0.0.1:1 gave no session" in onlooker.errors
    channels = site.document()["channels"]
    channels["main"]["topics"] = [f"^{site.topic}$"]
    onlooker = Onlooker(site, channels=channels, kafka={"bootstrap_servers": "127.0.0.1:1"})
    found = onlooker.look(code=1)
    assert found["state"] == "running"
    assert [each["owner"] for each in found["partitions"]] == ["one"] * 2
    assert onlooker.errors.startswith("Kafka at 127.0.0.1:1 does not answer")


def test_topics_that_are_matched_by_pattern(site: Site) -> None:
    """The brokers say what matches, and the members publish what they found."""
    channels = site.document()["channels"]
    channels["main"]["topics"] = [f"^{site.topic}$", "^no.such.topic"]
    onlooker = Onlooker(site, channels=channels)
    assert [each["state"] for each in onlooker.look()["partitions"]] == ["unowned"] * 2
    daemon = site.daemon(site.document() | {"channels": channels}).start()
    daemon.wait_event("no_topic_matches")
    eventually(lambda: [p["owner"] for p in onlooker.look()["partitions"]] == ["one"] * 2)
    found = onlooker.look()
    assert (found["unknown_topics"], found["members"][0]["topics"]) == ([], [site.topic])
    assert found["notes"] == ["no topic on the brokers matches ^no.such.topic"]


def test_a_wrong_configuration_and_an_unknown_channel_exit_with_2(site: Site) -> None:
    """Exit code 2 for a configuration that is wrong and for a channel that is not in it."""
    onlooker = Onlooker(site)
    onlooker.call("--channel", "other", code=2)
    assert "there is no channel other; choose from main" in onlooker.errors
    onlooker.file.write_text("channels: 7")
    onlooker.call(code=2)
    assert "channels" in onlooker.errors


def test_looking_again_and_again(site: Site) -> None:
    """One line of JSON for each look, with what has changed since; SIGINT ends it with 0."""
    watching = Onlooker(site).command("--json", "--watch", "0.1")
    with subprocess.Popen(watching, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())[0]["state"] == "never_run"
        site.run()
        while json.loads(process.stdout.readline())[0]["state"] != "running":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(WAIT) == 0


def test_a_terminal_gets_tables(site: Site) -> None:
    """With headings instead of keys."""
    ours, theirs = pty.openpty()
    command = Onlooker(site).command()
    with subprocess.Popen(command, stdout=theirs, env=os.environ | {"COLUMNS": "200"}) as process:
        os.close(theirs)
        assert process.wait(WAIT) == 0
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "has never run" in shown
    assert "committed" in shown
    assert f"unowned {site.topic}-1" in shown
