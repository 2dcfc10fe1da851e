"""Configurations to examine, and what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.config import Config
from headrace.core.findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def config(folder: Path, channel: dict[str, Any] | None = None, **sections: Any) -> Config:
    """Build a configuration with one Spark channel and its state in ``folder``."""
    least = {
        "topics": ["flights"],
        "group": "statistics",
        "processor": {"type": "spark", "reducer": "examples.demo.reducer:reduce"},
        "sink": "noop",
    }
    document = {"instance_id": "one", "state_dir": str(folder / "state")}
    return Config.model_validate(
        {**document, **sections, "channels": {"flights": {**least, **(channel or {})}}}
    )


def bad(findings: Iterable[Finding]) -> list[Finding]:
    """Return what is not as it should be."""
    return [finding for finding in findings if finding.level is not Level.OK]


def only(findings: Iterable[Finding]) -> Finding:
    """Return the one finding that is not as it should be; it says what to do."""
    (found,) = bad(findings)
    assert found.advice
    return found
