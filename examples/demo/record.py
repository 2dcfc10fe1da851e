"""The record of a run, and what the table's log says about it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from examples.harness.flights import DemoError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from headrace.extensions.delta.reader import TableCommit

_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class Kill:
    """When a daemon was killed: in seconds since the epoch, and after which version of the table.

    ``partitions`` are those it held.
    """

    member: str
    at: float
    version: int
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run: how many flights, which members, the kill, and the version before the restart."""

    rows: int
    members: tuple[str, ...]
    kill: Kill | None = None
    restart_version: int | None = None

    def write(self, directory: Path) -> None:
        """Put the record into the work directory."""
        (directory / _FILE).write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")


def read_record(directory: Path) -> RunRecord | None:
    """Return the record in a work directory, None if there is none.

    Raises:
        DemoError: the file does not hold a record.
    """
    path = directory / _FILE
    try:
        return TypeAdapter(RunRecord).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DemoError(
            f"{path} does not hold the record of a demo ({error.errors()[0]['msg']}); delete it to "
            "check the table against all flights"
        ) from error


def rows_in(commits: Iterable[TableCommit]) -> int:
    """Return how many records the commits account for, told by the partitions' offsets."""
    newest: dict[str, int] = {}
    for commit in commits:
        newest.update(commit.offsets)
    return sum(newest.values())


def members_of(commits: Iterable[TableCommit]) -> set[str]:
    """Return the members that made some of the commits."""
    return {commit.member for commit in commits if commit.member is not None}


def since(commits: Sequence[TableCommit], version: int) -> list[TableCommit]:
    """Return the commits after a version."""
    return [commit for commit in commits if commit.version > version]


def take_over(commits: Sequence[TableCommit], kill: Kill) -> TableCommit | None:
    """Return the first commit of another member that moved a partition of the killed one."""
    for commit in since(commits, kill.version):
        if commit.member != kill.member and set(kill.partitions) & _partitions(commit):
            return commit
    return None


def describe(record: RunRecord, commits: Sequence[TableCommit]) -> list[str]:
    """Return what the table's log says about the run, a sentence for each fact."""
    counts = [f"{name} {_count(commits, name)}" for name in record.members]
    lines = [f"commits per member: {', '.join(counts)}"]
    kill = record.kill
    if kill is None:
        return lines
    at_kill = rows_in(commit for commit in commits if commit.version <= kill.version)
    lines.append(
        f"kill point: {kill.member}, holding partitions {' '.join(map(str, kill.partitions))}, "
        f"by SIGKILL with {at_kill} rows in ({at_kill / record.rows:.1%})"
    )
    taken = take_over(commits, kill)
    if taken is not None:
        lines.append(
            f"take-over: {taken.at - kill.at:.1f} s from the kill to the commit in which "
            f"{taken.member} first moved a partition of {kill.member}"
        )
    if record.restart_version is not None:
        after = since(commits, record.restart_version)
        counts = [f"{name} {_count(after, name)}" for name in record.members]
        lines.append(f"commits after {kill.member} was started again: {', '.join(counts)}")
    return lines


def _count(commits: Iterable[TableCommit], member: str) -> int:
    return sum(commit.member == member for commit in commits)


def _partitions(commit: TableCommit) -> set[int]:
    """Return the partitions that a commit moved: the last part of each identity."""
    return {int(identity.rpartition("/")[2]) for identity in commit.offsets}
