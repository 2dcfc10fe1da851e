"""Values that are right one by one and wrong together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pydantic_core import PydanticCustomError

from headrace.config.wording import dotted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.config.wording import Steps


class Contradiction(NamedTuple):
    """One mistake inside a value.

    ``steps`` lead from the value to the mistake. ``sentence`` goes on from the place's name, says
    what does not fit what, and what would; it quotes no secret.
    """

    steps: Steps
    sentence: str


def contradicted(found: Sequence[Contradiction]) -> PydanticCustomError:
    """Return the one error that carries all that was found."""
    text = "; ".join(f"{dotted(steps)} {sentence}" for steps, sentence in found)
    return PydanticCustomError("contradiction", "{sentences}", {"sentences": text, "found": found})
