"""The settings of a fold: calls of the reducer, and policies for what it cannot be called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.letter_headers import OUR_HEADERS, LetterHeaders

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.decoders import CustomDecoder


@dataclass(frozen=True, slots=True)
class FoldSettings:
    """The form of values, and the policies for what cannot be reduced. Sizes are in bytes.

    ``grace`` and ``ttl`` are in milliseconds. ``outputs`` are the names that an output may go to,
    ``letters`` says what headers dead letters have. ``decoder`` reads values in place of what
    ``value`` names, and so does ``framed``, one of ours that reads many at once.
    """

    outputs: tuple[str, ...] = ()
    keys: str = "string"
    value: str = "json"
    state: str = "json"
    undecodable: str = "fail"
    failing: str = "fail"
    grace: int | None = None
    late: str = "skip"
    ttl: int | None = None
    max_row: int = 512 << 10
    max_output: int = 1_000_000
    letters: LetterHeaders = OUR_HEADERS
    decoder: Callable[[bytes], Any] | None = None
    framed: CustomDecoder | None = None

    @property
    def unreadable(self) -> str:
        """Return the policy for a fact that cannot be read: that of one that fails, by default."""
        return self.failing if self.undecodable == "fail" else self.undecodable
