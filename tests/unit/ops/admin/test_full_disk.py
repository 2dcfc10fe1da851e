"""The API on a disk without room."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.config.models.admin import SHORTEST_TOKEN
from headrace.core.errors import StartError
from headrace.ops.admin.auth import Folder

if TYPE_CHECKING:
    from pathlib import Path


def _refusing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Refuse to write files with an error of the operating system."""

    def refuse(path: Path, text: str) -> None:
        del text
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("headrace.ops.admin.auth.write_whole", refuse)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_no_member_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Address and token are not kept; the log warns, and the start goes on."""
    _refusing(monkeypatch, number)
    folder = Folder(tmp_path / "one")
    with capture_logs() as logs:
        folder.write_address("http://127.0.0.1:1")
        assert len(folder.token()) >= SHORTEST_TOKEN
    assert [each["event"] for each in logs] == ["admin_file_not_written"] * 2
    assert {each["log_level"] for each in logs} == {"warning"}
    folder.forget_address()


def test_a_folder_that_may_not_be_written_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which does not pass by itself: the configuration is wrong."""
    _refusing(monkeypatch, errno.EACCES)
    with pytest.raises(StartError, match=r"admin\.json cannot be written: .* state_dir"):
        Folder(tmp_path / "one").write_address("http://127.0.0.1:1")
