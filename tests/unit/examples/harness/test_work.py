from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import structlog

from examples.harness.flights import DemoError
from examples.harness.run import Interruption, WorkDirectory, interruptible

if TYPE_CHECKING:
    from pathlib import Path


def leave(work: WorkDirectory, error: BaseException | None = None) -> bool:
    """Leave the folder, with an error if one is given; return whether it is still there."""
    work.__exit__(None if error is None else type(error), error, None)
    return work.path.exists()


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make temporary folders in a folder that is removed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_folder_that_was_made_is_removed() -> None:
    """After a run, and after Ctrl-C, nothing is left."""
    assert not leave(WorkDirectory(None))
    assert not leave(WorkDirectory(None), KeyboardInterrupt())


def test_a_run_logs_to_its_folder_and_then_as_before() -> None:
    """Events go to the file while the folder is in use, and afterwards where they went before."""
    before = structlog.get_config()
    work = WorkDirectory(None)
    work.keep = True
    structlog.get_logger().info("during_the_run")
    leave(work)
    assert structlog.get_config() == before
    assert "during_the_run" in (work.path / "demo.log").read_text(encoding="utf-8")


def test_a_folder_stays_after_an_error() -> None:
    """The logs that tell what went wrong are not thrown away."""
    assert leave(WorkDirectory(None), DemoError())


def test_a_folder_stays_on_request(tmp_path: Path) -> None:
    """A folder that the user named stays, and one that is to be kept."""
    assert leave(WorkDirectory(tmp_path / "named"))
    work = WorkDirectory(None)
    work.keep = True
    assert leave(work)


def test_a_used_folder_is_refused(tmp_path: Path) -> None:
    """A run never mixes with the files of another one."""
    (tmp_path / "file").touch()
    with pytest.raises(DemoError, match="is not empty"):
        WorkDirectory(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file in the way is an error with the path."""
    (tmp_path / "file").touch()
    with pytest.raises(DemoError, match=r"file/inner cannot be used: Not a directory"):
        WorkDirectory(tmp_path / "file" / "inner")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_once(number: signal.Signals) -> None:
    """The first signal raises, a second one during the clean-up does not, handlers come back."""
    # the tests themselves may run under nohup
    found = signal.signal(number, signal.SIG_DFL)

    def interrupted_twice() -> None:
        with interruptible():
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)

    try:
        with pytest.raises(Interruption) as raised:
            interrupted_twice()
        assert raised.value.number == number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, found)


def test_an_ignored_signal_stays_ignored() -> None:
    """Under nohup, the end of the terminal does not end the demo."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
