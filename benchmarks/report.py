"""What a benchmark says at its end, and how."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: What a figure depends on beside the interpreter.
_PACKAGES = ("confluent-kafka", "pyspark", "pyarrow", "deltalake")


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one benchmark, the most important first.

    ``by_round`` has those that a second run has to repeat, by name: what each was in every round.
    """

    name: str
    figures: dict[str, Any]
    by_round: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return one line, with what the figures depend on."""
        return json.dumps({"benchmark": self.name, **self.figures, **_surroundings()})

    def as_table(self) -> str:
        """Return one figure a line."""
        figures = {"benchmark": self.name, **self.figures, **_surroundings()}
        width = max(map(len, figures))
        return "\n".join(f"{key:<{width}}  {_shown(value)}" for key, value in figures.items())


def not_repeated(first: Report, second: Report) -> list[str]:
    """Return where the second run's median lies beyond the rounds of the first, in words."""
    if not first.by_round:
        return [f"{first.name} has no figure round by round, so that nothing can be compared"]
    found = []
    for name, rounds in first.by_round.items():
        again = second.by_round.get(name)
        if not again:
            found.append(f"{name} is missing in the second run")
        elif not min(rounds) <= median(again) <= max(rounds):
            was = ", ".join(f"{each:.3g}" for each in rounds)
            found.append(f"{name} was {was}, and {median(again):.3g} in the middle of a second run")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(each)}" for key, each in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _surroundings() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "machine": {
            "processor": _processor(),
            "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') >> 30} GiB",
            "system": platform.platform(),
        },
        "load": [round(load, 1) for load in os.getloadavg()],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    """Return the processor's own name, which only Linux tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def say(line: str) -> None:
    """Tell how far it is, on standard error: standard output has the result."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
