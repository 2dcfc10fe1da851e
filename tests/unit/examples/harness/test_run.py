"""How demos end: their exit codes and last lines, their folder, and their daemons."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from examples.demo.demo import channels_into
from examples.harness.daemons import Daemon, Daemons, Endpoints
from examples.harness.flights import DemoError
from examples.harness.run import WorkDirectory, concluded, verified_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass
class Found:
    """Hold the finding of a demo."""

    holds: bool

    def __str__(self) -> str:
        return f"it holds: {self.holds}"


def fail(*_: object) -> Found:
    """Fail as a demo does."""
    raise DemoError("nothing came of this")


def interrupt(_: Console) -> Found:
    """Be ended from outside."""
    os.kill(os.getpid(), signal.SIGTERM)
    return Found(True)


@pytest.mark.parametrize(
    ("run", "code", "out", "err"),
    [
        (lambda _: Found(True), 0, "it holds: True\n", ""),
        (lambda _: Found(False), 1, "it holds: False\n", ""),
        (fail, 1, "", "nothing came of this\n"),
        (interrupt, 128 + signal.SIGTERM, "", "interrupted; nothing is left running\n"),
    ],
)
def test_a_demo_ends_with_a_code_and_a_line(
    run: Callable[[Console], Found],
    code: int,
    out: str,
    err: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Code and line follow from the finding, or from the error."""
    assert concluded(run) == code
    assert capsys.readouterr() == (out, err)


def test_an_error_names_the_folder_that_is_kept(tmp_path: Path) -> None:
    """All that says why is in there."""
    folder = tmp_path / "work"
    with pytest.raises(DemoError, match=f"nothing came of this\nall files are kept in {folder}"):
        verified_in(folder, Console(quiet=True), fail)


def test_a_failed_verification_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successful one keeps it only for a callback, which is called once all is known."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    console, left = Console(quiet=True), list[WorkDirectory]()
    assert verified_in(None, console, lambda _: Found(True)).holds
    assert list(tmp_path.iterdir()) == []
    assert not verified_in(None, console, lambda _: Found(False)).holds
    verified_in(None, console, lambda _: Found(True), left.append)
    assert len(list(tmp_path.iterdir())) == 2
    assert [work.path.exists() for work in left] == [True]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let daemons stop with a code, by their number, and record the kills."""
    killed = list[str]()
    monkeypatch.setattr(Daemon, "stop", lambda self, _: int(self.name[-1]) - 1)
    monkeypatch.setattr(Daemon, "kill", lambda self: killed.append(self.name))
    return killed


def test_daemons_are_stopped_and_then_gone(tmp_path: Path, ended: list[str]) -> None:
    """One that stopped with another code than 0 is named, with the end of its log."""
    channels = channels_into(tmp_path / "table")
    with Daemons.of(tmp_path, Endpoints("b:1", "z:2"), 2, channels) as daemons:
        with daemons.stopped():
            pass
        first, second = daemons.complaints()
    assert first == "daemon-2 stopped with code 1, not 0"
    assert second == f"the end of {tmp_path}/daemon-2/daemon.log:"
    assert sorted(ended) == ["daemon-1", "daemon-2"]


def test_an_error_on_the_way_has_the_ends_of_all_logs(tmp_path: Path, ended: list[str]) -> None:
    """All daemons are killed, and none is stopped."""
    channels = channels_into(tmp_path / "table")
    made = Daemons.of(tmp_path, Endpoints("b:1", "z:2"), 2, channels)
    for daemon in made:
        daemon.log_file.write_text(f"by {daemon.name}")
    with pytest.raises(DemoError) as raised, made as daemons, daemons.stopped():
        fail()
    assert str(raised.value).splitlines()[1::2] == ["  by daemon-1", "  by daemon-2"]
    assert str(raised.value).endswith("\nnothing came of this")
    assert made.complaints() == []
    assert sorted(ended) == ["daemon-1", "daemon-2"]
