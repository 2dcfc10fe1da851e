"""Durations and sizes: text with a unit, such as ``250ms`` and ``16MiB``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from headrace.config.types.scalars import FieldType, bounds, refuse

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_SECONDS = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_BYTES = {
    "TiB": 1024**4,
    "GiB": GIB,
    "MiB": MIB,
    "KiB": KIB,
    "TB": 1000**4,
    "GB": 1000**3,
    "MB": 1000**2,
    "KB": 1000,
    "B": 1,
}
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,30})?"
_DURATION = re.compile(rf"({_NUMBER}) ?({'|'.join(_SECONDS)})")
_SIZE = re.compile(rf"({_NUMBER}) ?({'|'.join(_BYTES)})?")
_BARE = re.compile(_NUMBER)

#: The operating system's waits overflow at 292 years; no wait is meant to last 27.
MAX_SECONDS = 10_000 * 86400.0
#: Above any machine's memory, and far from what a 64-bit count of bytes overflows at.
MAX_BYTES = 1024**5


def parse_duration(text: str) -> float | None:
    """Return the seconds that ``text`` stands for, None when it is not a duration."""
    if text == "0":
        return 0.0
    match = _DURATION.fullmatch(text)
    return None if match is None else float(Decimal(match[1]) * _SECONDS[match[2]])


def format_duration(seconds: float) -> str:
    """Return the shortest whole count of one unit, else a fraction of milliseconds."""
    exact = Decimal(repr(seconds))
    for unit, length in _SECONDS.items():
        if exact % length == 0 and (exact or unit == "s"):
            return f"{int(exact / length)}{unit}"
    return f"{(exact * 1000).normalize():f}ms"


def parse_size(text: str) -> int | None:
    """Return the bytes that ``text`` stands for, None when it is not a whole count of bytes."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    size = Decimal(match[1]) * _BYTES[match[2] or "B"]
    return int(size) if size == int(size) else None


def format_size(size: int) -> str:
    """Return the shortest whole count of one unit: ``16MiB``, ``500KB``, ``1B``."""
    unit = next(
        unit for unit, length in _BYTES.items() if size % length == 0 and (size or length == 1)
    )
    return f"{size // _BYTES[unit]}{unit}"


@dataclass(frozen=True, slots=True)
class Duration(FieldType):
    """Seconds, written with a unit. The bounds are in seconds, both included."""

    minimum: float = 0.0
    maximum: float = MAX_SECONDS

    @property
    def description(self) -> str:
        low = format_duration(self.minimum) if self.minimum else None
        high = format_duration(self.maximum) if self.maximum < MAX_SECONDS else None
        return "a duration such as 250ms, 10s or 5m" + bounds(low, high, ",")

    def read(self, value: Any) -> float:
        if type(value) in (int, float):
            value = str(value)
        if not isinstance(value, str):
            raise self.not_accepted()
        seconds = parse_duration(value)
        if seconds is None and _BARE.fullmatch(value):
            raise refuse("has no unit; put ms, s, m, h or d after the number")
        if seconds is None or not self.minimum <= seconds <= self.maximum:
            raise self.not_accepted()
        return seconds

    def write(self, value: float) -> str:
        return format_duration(value)

    def json_schema(self) -> dict[str, Any]:
        pattern = f"^({_DURATION.pattern}|0)$"
        return {"anyOf": [{"type": "string", "pattern": pattern}, {"const": 0}]}


@dataclass(frozen=True, slots=True)
class Size(FieldType):
    """Bytes, written with or without a unit. The bound is in bytes and included."""

    minimum: int = 0

    @property
    def description(self) -> str:
        low = format_size(self.minimum) if self.minimum else None
        return "a size such as 512KiB, 16MiB or 1GiB" + bounds(low, None, ",")

    def read(self, value: Any) -> int:
        size = value if type(value) is int else None
        if isinstance(value, str):
            size = parse_size(value)
        if size is None or not self.minimum <= size <= MAX_BYTES:
            raise self.not_accepted()
        return size

    def write(self, value: int) -> str:
        return format_size(value)

    def json_schema(self) -> dict[str, Any]:
        pattern = f"^{_SIZE.pattern}$"
        return {
            "anyOf": [
                {"type": "string", "pattern": pattern},
                {"type": "integer", "minimum": self.minimum},
            ]
        }


NonNegativeSeconds = Annotated[float, Duration()]
"""Seconds; 0 means at once."""
PositiveSeconds = Annotated[float, Duration(minimum=0.01)]
"""Seconds, at least the 10 ms below which a wait costs more than it saves."""
