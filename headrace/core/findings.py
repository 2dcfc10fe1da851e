"""Findings: what a check of ``headrace doctor`` saw, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """The severity of a finding."""

    OK = "ok"
    """As it should be."""

    WARNING = "warning"
    """The channels can run, but not as well or as safely as they could."""

    ERROR = "error"
    """They cannot run, or will fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: what was ``seen``, and what to do about it, if anything."""

    check: str
    level: Level
    seen: str
    advice: str = ""


def ok(check: str, seen: str) -> Finding:
    """Return that all is well."""
    return Finding(check, Level.OK, seen)


def warning(check: str, seen: str, advice: str) -> Finding:
    """Return that something could be better."""
    return Finding(check, Level.WARNING, seen, advice)


def error(check: str, seen: str, advice: str) -> Finding:
    """Return that something has to be fixed."""
    return Finding(check, Level.ERROR, seen, advice)
