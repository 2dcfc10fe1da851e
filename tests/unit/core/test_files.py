"""Writing files whole."""

from __future__ import annotations

from stat import S_IMODE
from typing import TYPE_CHECKING

import pytest

from headrace.core.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """No other file is left, and only the owner may read it."""
    file = tmp_path / "offsets.yaml"
    write_whole(file, "old")
    write_whole(file, "new")
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]
    assert S_IMODE(file.stat().st_mode) == 0o600


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    """The former file stays as it was, without a part of the new one."""
    file = tmp_path / "offsets.yaml"
    file.mkdir()
    with pytest.raises(OSError, match="offsets"):
        write_whole(file, "new")
    assert list(tmp_path.iterdir()) == [file]
