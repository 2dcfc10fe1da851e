"""The processes of databases that tests start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.postgres import running

if TYPE_CHECKING:
    from pathlib import Path


def test_an_interrupt_of_the_tests_does_not_reach_their_database(tmp_path: Path) -> None:
    """Server and supervisor have a session of their own, and end with the block."""
    with running(["sleep", "600"], tmp_path) as pid:
        assert os.getpgid(pid) != os.getpgid(0)
        assert os.getsid(pid) != os.getsid(0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
