"""``headrace state`` beside daemons that run and that are stopped."""

from __future__ import annotations

import json
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.store import RocksStore
from headrace.testing.records import FakeRecord
from tests.integration.daemon.test_offsets import quiet
from tests.integration.extensions.keyed.test_daemon import arrived, keyed, rows
from tests.integration.extensions.keyed.test_state import KEYS, document, produce, reduced
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from tests.integration.daemon.rig import Daemon, Site

__all__ = ["quiet"]

pytestmark = pytest.mark.timeout(300)


@dataclass
class Rig:
    """One channel with state, its daemon, and the commands on its configuration."""

    site: Site
    processor: dict[str, Any] = field(default_factory=dict)
    rejects: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.output = self.site.broker.create_topic(1)
        self.config = document(self.site, self.output)
        self.config["channels"]["main"]["processor"].update(self.processor)
        self.config["channels"]["main"]["rejects"] = self.rejects
        self.file = self.site.directory / "headrace.yaml"
        self.file.write_text(json.dumps(self.config), encoding="utf-8")
        self.outputs = self.facts = 0

    def start(self) -> Daemon:
        """Start the daemon."""
        daemon = self.site.daemon(self.config).start(config=self.file)
        daemon.wait_event("controller_started")
        return daemon

    def count(self, daemon: Daemon, times: int = 1) -> None:
        """Produce a fact of each key, ``times`` times, and wait until all are counted."""
        produce(self.site, times)
        self.outputs += times * len(KEYS)
        self.facts += times * len(KEYS)
        arrived(self.site, daemon, self.output, self.outputs)
        reduced(self.site, {"one"}, self.facts)

    def stop(self, daemon: Daemon) -> None:
        """Stop the daemon in order."""
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0, daemon.text()

    def run(self, *arguments: str, expect: int = 0, config: Path | None = None) -> Result:
        """Run a command; its exit code is the one that is expected."""
        result = CliRunner().invoke(app, ["state", *arguments, "-c", str(config or self.file)])
        assert result.exit_code == expect, result.output
        return result

    def listed(self, *more: str) -> dict[str, Any]:
        """Return the keys and states that list shows."""
        lines = self.run("list", "--json", *more).stdout.splitlines()
        found = [json.loads(line) for line in lines]
        assert len({each["key"] for each in found}) == len(found)
        return {each["key"]: each["state"] for each in found}

    def states(self) -> dict[bytes, Any]:
        """Return what readers of the changelog see, deletions left out."""
        found = dict(rows(self.site, changelog_name(self.site.group, self.site.topic)))
        return {key: value for key, value in found.items() if value is not None}


def all_at(count: int) -> dict[str, Any]:
    """Return the states of all keys after so many facts each."""
    return {key: {"n": count} for key in KEYS}


def test_a_running_channel_is_looked_at_and_not_changed(site: Site) -> None:
    """Keys are shown by the process and by the changelog; what changes them is refused with 3."""
    rig = Rig(site)
    daemon = rig.start()
    rig.count(daemon, 2)
    key = KEYS[3]
    shown = rig.run("get", key).stdout
    assert shown.splitlines()[1] == '{"n":2}'
    assert shown.startswith(f"{key} · partition {partition_of(key.encode(), 2)} · of the records")
    assert json.loads(rig.run("get", key, "--json", "--changelog").stdout)["state"] == {"n": 2}
    assert rig.listed() == rig.listed("--changelog") == all_at(2)
    assert rig.listed("--limit", "3", "--prefix", "key-1").keys() < set(KEYS)
    for source in ((), ("--changelog",)):
        refused = rig.run("get", "nobody", *source, expect=1)
        assert "no state of key nobody" in refused.stderr
    missing = rig.run("get", key, "--changelog", "--partition", "7", expect=2)
    assert "has no partition 7; it has 2" in missing.stderr
    exported = site.directory / "live.jsonl"
    rig.run("export", str(exported))
    assert len(exported.read_text(encoding="utf-8").splitlines()) == 1 + len(KEYS) + 2
    for command in (("import", str(exported)), ("forget", "--yes"), ("release", key)):
        assert f"group {site.group} has members: one" in rig.run(*command, expect=3).stderr
    assert "stop it first" in rig.run("verify", expect=3).stderr
    assert f"{site.group}.{site.topic}.state, 2 partitions" in rig.run("topics").stdout
    assert rig.listed() == all_at(2)
    rig.stop(daemon)


@pytest.mark.slow
def test_state_that_was_exported_is_imported_and_counted_on(site: Site) -> None:
    """Both forms of a file restore state that was forgotten in between; each fact counts once."""
    rig = Rig(site)
    daemon = rig.start()
    rig.count(daemon, 3)
    rig.stop(daemon)
    assert "differ" in rig.run("verify").stdout
    files = {form: site.directory / f"state.{form}" for form in ("jsonl", "parquet")}
    for form, file in files.items():
        rig.run("export", str(file), "--format", form)
    table = pq.read_table(files["parquet"])
    assert sorted(table.column("key").to_pylist()) == sorted(key.encode() for key in KEYS)
    before = rig.states()
    for file in files.values():
        rig.run("forget", "--yes", "--to", "latest")
        assert rig.states() == {}
        assert rig.run("list", "--changelog", "--json").stdout == ""
        rig.run("import", str(file))
        assert rig.states() == before
    refused = rig.run("import", str(files["jsonl"]), expect=2)
    assert f"has {len(KEYS)} keys; say --replace" in refused.stderr
    rig.run("import", str(files["jsonl"]), "--replace")
    daemon = rig.start()
    rig.count(daemon)
    assert rig.listed() == all_at(4)
    rig.stop(daemon)
    assert rig.run("verify").exit_code == 0
    counted = Counter(value["n"] for _, value in rows(site, rig.output))
    assert counted == dict.fromkeys(range(1, 5), len(KEYS))


@pytest.mark.slow
def test_a_channel_that_forgot_begins_again(site: Site) -> None:
    """From the beginning of its input, as initial_offset says; nothing without a yes."""
    rig = Rig(site)
    daemon = rig.start()
    rig.count(daemon, 2)
    rig.stop(daemon)
    asked = CliRunner().invoke(app, ["state", "forget", "-c", str(rig.file)], input="n\n")
    assert (asked.exit_code, "nothing was changed" in asked.stderr) == (2, True)
    assert rig.states() == {key.encode(): {"n": 2} for key in KEYS}
    rig.run("forget", "--yes")
    assert rig.states() == {}
    daemon = rig.start()
    rig.outputs *= 2
    arrived(site, daemon, rig.output, rig.outputs)
    reduced(site, {"one"}, rig.facts)
    assert rig.listed() == all_at(2)
    rig.stop(daemon)


def test_verify_names_the_keys_that_differ(site: Site) -> None:
    """A row that is another, one that is missing and one too many: exit code 1, for each."""
    rig = Rig(site)
    daemon = rig.start()
    rig.count(daemon)
    rig.stop(daemon)
    store = RocksStore(site.directory / "state" / "one" / "keyed" / "main" / "db")
    changed, gone = KEYS[0].encode(), KEYS[1].encode()
    store.open()
    for key, row in ((changed, KeyRow(b"7")), (gone, None), (b"new", KeyRow(b"1"))):
        place = PartitionKey(partition_of(key, 2), key)
        (before,) = store.get_many([place])
        store.put([ChangedRows.of([(place, RowChange(before, row))])])
    store.close()
    result = rig.run("verify", expect=1)
    named = {line.strip() for line in result.stdout.splitlines() if line.startswith("  ")}
    assert named == {repr(changed), repr(gone), repr(b"new")}
    assert "3 keys differ: delete" in result.stderr


@pytest.mark.slow
def test_a_key_is_released_from_quarantine(site: Site) -> None:
    """It has the state from before, and its facts are reduced again."""
    letters = site.broker.create_topic(1)
    rig = Rig(site, {"value": "json"}, {"failing": "quarantine", "topic": letters})
    key = KEYS[0].encode()
    place = site.partition(partition_of(key, 2))
    daemon = rig.start()
    site.broker.produce(place, FakeRecord(key_=key, value_=b"1"))
    arrived(site, daemon, rig.output, 1)
    site.broker.produce(place, FakeRecord(key_=key, value_=b"{"), FakeRecord(key_=key, value_=b"1"))
    reduced(site, {"one"}, 3)
    assert len(committed_records(site.broker.address, letters)) == 2
    assert "in quarantine: " in rig.run("get", KEYS[0]).stdout
    rig.stop(daemon)
    assert f"key {KEYS[0]} is released" in rig.run("release", KEYS[0]).stdout
    assert "is not in quarantine" in rig.run("release", KEYS[0], expect=2).stderr
    assert "has no key nobody" in rig.run("release", "nobody", expect=2).stderr
    daemon = rig.start()
    site.broker.produce(place, FakeRecord(key_=key, value_=b"1"))
    reduced(site, {"one"}, 4)
    found = json.loads(rig.run("get", KEYS[0], "--json").stdout)
    assert (found["state"], found["quarantined"]) == ({"n": 2}, None)
    rig.stop(daemon)


def test_files_and_channels_that_cannot_be_used_are_named(site: Site, tmp_path: Path) -> None:
    """Exit code 2, and nothing is changed."""
    rig = Rig(site)
    file = tmp_path / "state.jsonl"
    missing = rig.run("export", str(file), expect=2).stderr
    assert "does not exist; start the channel once" in missing
    assert "set processor.internal.create" in rig.run("topics", expect=1).stderr
    assert rig.run("topics", "--create").exit_code == 0
    rig.run("export", str(file))
    head, *ends = file.read_text(encoding="utf-8").splitlines()
    row = '{"partition":0,"key":"a","state":1}'
    for text, words in (
        ("", "is no JSON"),
        ("{}", "does not begin with headrace_state"),
        (head.replace('"headrace_state":1', '"headrace_state":9'), "has format version 9"),
        ("\n".join([head, *ends[:1]]), "partition 1 has 0 rows and not its end"),
        ("\n".join([head, row, *ends]), "partition 0 has 1 rows and not 0 rows"),
        ("\n".join([head, '{"partition":0,"key":"a"}', *ends]), "neither a state nor timers"),
        ("\n".join([head, '{"partition":9,"key":"a","state":1}', *ends]), "is none of 2"),
        ("\n".join([head, *ends]).replace('"offset":0', '"offset":null'), "has no offset for it"),
    ):
        file.write_text(text, encoding="utf-8")
        assert words in rig.run("import", str(file), expect=2).stderr, words
    assert "cannot be read" in rig.run("import", str(tmp_path / "none"), expect=2).stderr
    assert "no process of this configuration" in rig.run("verify", expect=2).stderr
    other = {**rig.config, "channels": {"plain": site.document()["channels"]["main"]}}
    plain = tmp_path / "plain.yaml"
    plain.write_text(json.dumps(other), encoding="utf-8")
    refused = rig.run("export", str(file), config=plain, expect=2).stderr
    assert "channel plain keeps no state: its processor is of type simple" in refused
    assert keyed(site, rig.output)["processor"]["type"] == "keyed"
