"""The sink of docs/sinks/one-file.md, as a plug-in and as a part of Headrace."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.daemon.rig import WAIT, eventually
from tests.pages import ROOT, blocks_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.daemon.rig import Site

_REDUCER = """
def places(table, batch):
    return table.select(["partition", "offset"])
"""

RECORDS = 10


def _source() -> str:
    """Return the file as the page has it."""
    page = ROOT / "docs" / "sinks" / "one-file.md"
    (source,) = (block.text for block in blocks_of(page) if block.detail == "ledger.py")
    return source


def _install(folder: Path) -> None:
    """Install the file as a package that offers it."""
    (folder / "ledger.py").write_text(_source())
    info = folder / "ledger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ledger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headrace.sinks]\nledger = ledger:LedgerConfig\n")


def _build_in(folder: Path) -> None:
    """Put the file into a copy of Headrace, and its line into the table of sinks."""
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "headrace", folder / "headrace", ignore=without)
    (folder / "headrace" / "sinks" / "ledger.py").write_text(_source())
    table = folder / "headrace" / "config" / "models" / "sink.py"
    text = table.read_text()
    line = '        "ledger": "headrace.sinks.ledger:LedgerConfig",\n'
    place = text.index('        "jsonl": ')
    table.write_text(text[:place] + line + text[place:])


class Installed:
    """A Headrace that has the sink, and a configuration with it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        # the folder stands before the checkout, which the tests run in
        self.environment = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
        self.base = site.directory / "ledger.db"
        (site.directory / "reducers.py").write_text(_REDUCER)
        self.file = site.directory / "headrace.yaml"

    def document(self, **sink: Any) -> dict[str, Any]:
        """Return a configuration, and write it to the file."""
        document = self.site.document(
            processor={"type": "arrow", "reducer": "reducers:places"},
            sink={"type": "ledger", "path": str(self.base), **sink},
        )
        self.file.write_text(json.dumps(document))
        return document

    def call(self, *words: str, code: int = 0) -> str:
        """Run a command in a process of its own, and return what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *words],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=3 * WAIT,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def lines(self) -> list[dict[str, Any]]:
        """Return the rows that are stored."""
        if not self.base.exists() or self.base.stat().st_size == 0:
            return []
        with closing(sqlite3.connect(self.base)) as base:
            return [json.loads(line) for (line,) in base.execute("SELECT line FROM entries")]


@pytest.fixture(
    params=[
        pytest.param(_install, id="entry point"),
        pytest.param(_build_in, id="built in", marks=pytest.mark.slow),
    ]
)
def installed(request: pytest.FixtureRequest, site: Site, tmp_path: Path) -> Installed:
    """A Headrace that has the sink either way."""
    folder = tmp_path / "installed"
    folder.mkdir()
    request.param(folder)
    return Installed(site, folder)


@pytest.mark.timeout(300)
def test_a_sink_in_one_file_is_a_kind_like_those_of_headrace(installed: Installed) -> None:
    """Check, schema, doctor, a run with metrics, offsets and a replay know it by its section."""
    file = str(installed.file)
    installed.document(timeout="never", patth="x")
    told = installed.call("check", "-c", file, code=2)
    assert "sink.timeout (line 1): 'never' is not a duration" in told
    assert "sink.patth (line 1): is not a known key; did you mean path?" in told

    document = installed.document()
    assert "exactly-once: the ledger stores rows" in installed.call("check", "-c", file)
    schema = json.loads(installed.call("schema"))
    assert set(schema["$defs"]["LedgerConfig"]["properties"]) == {"type", "path", "timeout"}
    # doctor ends with 1 or 0 as the machine is; what it says of the sink counts here
    doctor = subprocess.run(
        [sys.executable, "-m", "headrace", "doctor", "-c", file, "--json"],
        env=os.environ | installed.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * WAIT,
    )
    findings = json.loads(doctor.stdout)["findings"]
    (of_sink,) = (each for each in findings if each["check"] == "sink of channel main")
    assert (of_sink["level"], "folder that exists" in of_sink["seen"]) == ("ok", True)

    site = installed.site
    site.broker.produce(site.partition(0), *[b"x"] * RECORDS)
    daemon = site.daemon(document)
    daemon.environment = installed.environment
    daemon.start()
    daemon.wait_event("metrics_served")
    eventually(lambda: len(installed.lines()) == RECORDS)
    stored = daemon.metric("headrace_stage_seconds_count", channel="main", stage="sink_commit")
    assert stored is not None
    assert stored >= 1
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.text()

    reset = ("offsets", "reset", "-c", file, "--to", "earliest")
    told = installed.call(*reset, code=2)
    assert "--replay append keeps it (lines are added again" in told
    installed.call(*reset, "--replay", "append")
    again = site.daemon(document)
    again.environment = installed.environment
    again.start("--until", "latest")
    assert again.running.wait(3 * WAIT) == 0, again.text()
    assert len(installed.lines()) == 2 * RECORDS
