"""Why offsets were not changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Sequence


class OffsetsError(HeadraceError):
    """Offsets could not be read or changed. The message says what was changed, if anything."""


class RequestError(OffsetsError):
    """What was asked for does not fit the channel or the brokers. Nothing was changed.

    ``problems`` holds one sentence for each mistake.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class ChannelRunningError(OffsetsError):
    """Somebody consumes in the channel's group. Nothing was changed."""
