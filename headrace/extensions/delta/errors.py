"""The errors of the Delta sink about its own table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import HeadraceError

if TYPE_CHECKING:
    from pathlib import Path


class NotRewritableError(HeadraceError):
    """Files of the table are left as they are; the message says why."""


class OvertakenError(HeadraceError):
    """While we made an entry of the log a later checkpoint appeared that does not show it."""

    def __init__(self, folder: Path, version: int) -> None:
        super().__init__(
            f"{folder}: a checkpoint overtook version {version} while it was written, and does not "
            "show what that stored; was this process stopped for longer than the log is kept?"
        )
