"""Numbers, and true or false."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

from headrace.config.expand import Expanded
from headrace.config.kinds.base import Kind, bounds

#: The words that YAML reads as true and false; a reference may bring any of them.
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class WholeNumber(Kind):
    """A whole number within bounds, both included."""

    minimum: int | None = None
    maximum: int | None = None

    @property
    def accepted(self) -> str:
        """What is accepted."""
        low, high = (None if n is None else str(n) for n in (self.minimum, self.maximum))
        return "a whole number" + bounds(low, high)

    def read(self, value: Any) -> int:
        """Return the number."""
        if isinstance(value, Expanded) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if type(value) is not int:
            raise self.not_accepted()
        if self.minimum is not None and value < self.minimum:
            raise self.not_accepted()
        if self.maximum is not None and value > self.maximum:
            raise self.not_accepted()
        return value

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        limits = {"minimum": self.minimum, "maximum": self.maximum}
        return {"type": "integer"} | {k: v for k, v in limits.items() if v is not None}


@dataclass(frozen=True, slots=True)
class PositiveNumber(Kind):
    """A finite number greater than 0, with or without a fraction."""

    @property
    def accepted(self) -> str:
        """What is accepted."""
        return "a number greater than 0"

    def read(self, value: Any) -> float:
        """Return the number."""
        if type(value) not in (int, float) and not isinstance(value, Expanded):
            raise self.not_accepted()
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise self.not_accepted() from None
        if not math.isfinite(number) or number <= 0:
            raise self.not_accepted()
        return number

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        return {"type": "number", "exclusiveMinimum": 0}


@dataclass(frozen=True, slots=True)
class TrueOrFalse(Kind):
    """A truth value."""

    @property
    def accepted(self) -> str:
        """What is accepted."""
        return "true or false"

    def read(self, value: Any) -> bool:
        """Return the truth value."""
        if isinstance(value, Expanded):
            value = _WORDS.get(value.strip().lower())
        if not isinstance(value, bool):
            raise self.not_accepted()
        return value

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        return {"type": "boolean"}


Count = Annotated[int, WholeNumber(1, 1_000_000_000)]
Flag = Annotated[bool, TrueOrFalse()]
Port = Annotated[int, WholeNumber(0, 65535)]
