"""Snapshots of local stores: taken beside a daemon that runs, and continued on another machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed.names import changelog_name
from headrace.ops.state.snapshot_files import read_head
from tests.integration.daemon.test_offsets import quiet
from tests.integration.extensions.keyed.test_commands import Rig, all_at
from tests.integration.extensions.keyed.test_daemon import arrived, rows
from tests.integration.extensions.keyed.test_state import KEYS, WAIT, produce, reduced
from tests.integration.extensions.streams.test_daemon import clicks, program, stop, topology
from tests.integration.extensions.streams.test_daemon import produce as send_clicks

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.ops.state.snapshot_files import SnapshotHead
    from tests.integration.daemon.rig import Daemon, Site

__all__ = ["quiet"]

pytestmark = pytest.mark.timeout(300)


@dataclass
class OtherMachine:
    """A member of the same group with a state folder of its own."""

    rig: Rig

    def __post_init__(self) -> None:
        self.config = {**self.rig.config, "instance_id": "two"}
        self.file = self.rig.site.directory / "two.yaml"
        self.file.write_text(json.dumps(self.config), encoding="utf-8")

    def start(self) -> Daemon:
        """Start its daemon."""
        daemon = self.rig.site.daemon(self.config).start(config=self.file)
        daemon.wait_event("controller_started")
        return daemon

    def restore(self, folder: Path, expect: int = 0) -> str:
        """Put a snapshot in the place of its store, and return what was said."""
        result = self.rig.run(
            "restore", "--from-snapshot", str(folder), config=self.file, expect=expect
        )
        return str(result.output)

    def count(self, daemon: Daemon) -> None:
        """Produce a fact of each key, and wait until this member has counted all."""
        produce(self.rig.site)
        self.rig.outputs += len(KEYS)
        self.rig.facts += len(KEYS)
        arrived(self.rig.site, daemon, self.rig.output, self.rig.outputs)
        reduced(self.rig.site, {"two"}, self.rig.facts)


def taken_once_noted(rig: Rig) -> tuple[Path, SnapshotHead]:
    """Return a snapshot of the daemon that runs, whose positions are behind all that it counted."""
    count = 0

    def take() -> tuple[Path, SnapshotHead] | None:
        nonlocal count
        count += 1
        folder = rig.site.directory / f"snapshot-{count}"
        rig.run("snapshot", str(folder))
        head = read_head(folder)
        offsets = [each.position.offset for each in head.follows.values()]
        return (folder, head) if len(offsets) == 2 and min(offsets) > 0 else None

    found = wait_for(take, Deadline.after(WAIT))
    assert found is not None
    return found


def started(daemon: Daemon) -> dict[int, tuple[int, int]]:
    """Return from where to where the changelog of each partition was read."""
    lines = [each for each in daemon.events() if each["event"] == "restore_started"]
    return {each["partition"]: (each["start"], each["end"]) for each in lines}


def names_beside(site: Site, member: str) -> set[str]:
    """Return what is in the folder of a member's channel."""
    return {each.name for each in (site.directory / "state" / member / "keyed" / "main").iterdir()}


def test_a_snapshot_of_a_running_channel_is_continued_on_another_machine(site: Site) -> None:
    """It reads the changelog from the snapshot's offsets on, and each fact counts once."""
    settings: dict[str, Any] = {"state": {"checkpoint": "1s"}}
    rig = Rig(site, settings)
    first = rig.start()
    rig.count(first, 2)
    folder, head = taken_once_noted(rig)
    assert head.changelog == changelog_name(site.group, site.topic)
    assert not [name for name in names_beside(site, "one") if name.startswith("db.")]
    rig.count(first)
    other = OtherMachine(rig)
    # the first machine's process may run meanwhile
    said = other.restore(folder)
    for number, each in head.follows.items():
        assert f"-{number}: from offset {each.position.offset} on, " in said
    assert (
        "is in use by process"
        in rig.run("restore", "--from-snapshot", str(folder), expect=3).stderr
    )
    rig.stop(first)
    second = other.start()
    other.count(second)
    expected = {number: each.position.offset for number, each in head.follows.items()}
    assert {number: start for number, (start, _) in started(second).items()} == expected
    assert not [each for each in second.events() if each["event"] == "local_state_dropped"]
    assert rig.listed("--changelog") == all_at(4)
    assert "is in use by process" in other.restore(folder, expect=3)
    rig.stop(second)
    assert "has more of partitions 0, 1" in other.restore(folder, expect=2)
    assert rig.run("verify", config=other.file).exit_code == 0


def test_a_snapshot_of_a_former_changelog_is_refused(site: Site) -> None:
    """The changelog was made again, from an export: the whole of it is read, as without it."""
    rig = Rig(site)
    daemon = rig.start()
    rig.count(daemon)
    rig.stop(daemon)
    folder, exported = site.directory / "snapshot", str(site.directory / "state.jsonl")
    rig.run("snapshot", str(folder))
    assert "is not an empty folder" in rig.run("snapshot", str(folder), expect=2).stderr
    rig.run("export", exported)
    changelog = changelog_name(site.group, site.topic)
    site.broker.delete_topic(changelog)
    assert wait_for(lambda: changelog not in site.broker.topics(), Deadline.after(WAIT))
    rig.run("topics", "--create", expect=1)
    other = OtherMachine(rig)
    assert "it was made again" in other.restore(folder, expect=2)
    rig.run("import", exported)
    assert "it was made again" in other.restore(folder, expect=2)
    again = other.start()
    other.count(again)
    assert rig.listed("--changelog") == all_at(2)
    rig.stop(again)


def test_a_part_of_a_topology_is_continued_on_another_machine(site: Site) -> None:
    """Taken where no process runs: the other machine reads nothing of the changelog, and adds."""
    output = site.broker.create_topic(1)
    options = {"clicks": site.topic, "output": output}
    document = topology(site, program(site), "totals", options)
    files = {}
    for member in ("one", "two"):
        files[member] = site.directory / f"{member}.yaml"
        content = json.dumps({**document, "instance_id": member})
        files[member].write_text(content, encoding="utf-8")

    def counted() -> int:
        return sum(value["n"] for value in dict(rows(site, output)).values())

    def run(member: str, total: int) -> Daemon:
        daemon = site.daemon(document).start(config=files[member])
        send_clicks(site, clicks(100, total))
        assert wait_for(lambda: counted() == total, Deadline.after(WAIT)), daemon.text()
        stop(daemon)
        return daemon

    def state(member: str, *arguments: str) -> None:
        command = ["state", *arguments, "-c", str(files[member])]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output

    run("one", 100)
    folder = str(site.directory / "snapshot")
    state("one", "snapshot", folder)
    state("two", "restore", "--from-snapshot", folder)
    second = run("two", 200)
    assert not {"restore_started", "local_state_dropped"} & {
        each["event"] for each in second.events()
    }
    state("two", "verify")
