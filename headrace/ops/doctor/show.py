"""Show findings: as a table, as lines, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from headrace.core.findings import Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.core.findings import Finding

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}

ACLS = "The least that Kafka's ACLs have to allow, where brokers check them:"


def table(findings: Iterable[Finding]) -> Table:
    """Return a table with one row for each finding."""
    shown = Table("", "check", "seen", "what to do", show_lines=False)
    for each in findings:
        style = _STYLES[each.level]
        shown.add_row(
            f"[{style}]{each.level.value}[/]", escape(each.check), escape(each.seen),
            escape(each.advice),
        )  # fmt: skip
    return shown


def line(finding: Finding) -> str:
    """Return a finding as one line, for logs and scripts."""
    advice = f" -> {finding.advice}" if finding.advice else ""
    return f"{finding.level.value:<7} {finding.check}: {finding.seen}{advice}"


def summary(findings: Sequence[Finding]) -> str:
    """Return how many there are of each kind."""
    counts = {level: sum(f.level is level for f in findings) for level in Level}
    return (
        f"{_count(counts[Level.ERROR], 'error')}, {_count(counts[Level.WARNING], 'warning')}, "
        f"{counts[Level.OK]} ok"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 where nothing has to be fixed, else 1."""
    return int(any(finding.level is Level.ERROR for finding in findings))


def document(findings: Sequence[Finding], acls: Sequence[str]) -> dict[str, Any]:
    """Return everything as JSON has it."""
    return {
        "ok": not exit_code(findings),
        "findings": [asdict(finding) | {"level": finding.level.value} for finding in findings],
        "acls": list(acls),
    }
