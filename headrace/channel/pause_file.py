"""Where an operator's pauses outlive the process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.channel.pauses import Pause, PauseMode, PauseReason
from headrace.errors import StartError
from headrace.files import write_whole
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FORMAT_VERSION = 1


class PauseFile:
    """One channel's pauses as JSON. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[Pause]:
        """Return what a former process kept; none without a file.

        Raises:
            StartError: the file cannot be read. Delivering though somebody paused may do harm.
        """
        try:
            return _decoded_all(json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StartError(
                f"the pauses kept in {self._path} cannot be read ({error!r}); delete the file to "
                "start without a pause, or set pause.persist to false"
            ) from error

    def save(self, pauses: Iterable[Pause]) -> None:
        """Keep these pauses, in place of those before: a reader finds the old or the new ones.

        Raises:
            OSError: they could not be written; the former ones stand.
        """
        document = {"version": FORMAT_VERSION, "pauses": [_encoded(pause) for pause in pauses]}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, json.dumps(document))

    def forget(self) -> None:
        """Keep none: what is over by then must not come back. Raises OSError."""
        self._path.unlink(missing_ok=True)


def _decoded_all(document: dict[str, Any]) -> list[Pause]:
    if document["version"] != FORMAT_VERSION:
        raise ValueError(f"format version {document['version']}")
    return [_decoded(fields) for fields in document["pauses"]]


def _encoded(pause: Pause) -> dict[str, Any]:
    partition = pause.partition
    return {
        "reason": pause.reason.value,
        "by": pause.by,
        "since": pause.since,
        "until": pause.until,
        "mode": pause.mode.value,
        "partition": None if partition is None else [partition.topic, partition.partition],
        "note": pause.note,
    }


def _decoded(fields: dict[str, Any]) -> Pause:
    partition, until = fields["partition"], fields["until"]
    return Pause(
        reason=PauseReason(fields["reason"]),
        by=str(fields["by"]),
        since=float(fields["since"]),
        until=None if until is None else float(until),
        mode=PauseMode(fields["mode"]),
        partition=None
        if partition is None
        else TopicPartition(str(partition[0]), int(partition[1])),
        note=str(fields["note"]),
    )
