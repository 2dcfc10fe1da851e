"""The row of a key: what a fold makes, the store keeps, the changelog has and readers show."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.extensions.keyed.api import Timer, TimerClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: What the names of timers of our own begin with. No reducer's timer does.
PREFIX = "headrace."

#: The timer by which a key without facts is deleted.
TTL = PREFIX + "ttl"


class PartitionKey(NamedTuple):
    """One key of one partition."""

    partition: int
    key: bytes


class RowExtra(NamedTuple):
    """The rest of a row beside the state. ``quarantined`` says why its facts are set aside."""

    timers: Mapping[str, Timer]
    quarantined: str | None = None


_NO_EXTRA = RowExtra({})


class KeyRow(NamedTuple):
    """One key's row, in bytes. ``state`` is None where the key has timers or quarantine alone.

    ``extra`` has timers and quarantine as JSON, None without any. It also says where there is no
    state, because the store and the changelog have to have a value there: they have no bytes.
    """

    state: bytes | None
    extra: bytes | None = None

    @classmethod
    def of(
        cls, state: bytes | None, timers: Mapping[str, Timer], quarantined: str | None = None
    ) -> KeyRow:
        """Return the row of a state, with its timers and the reason of its quarantine."""
        if not timers and quarantined is None:
            return cls(state)
        document: dict[str, Any] = {}
        if timers:
            document["timers"] = {
                name: [timer.clock.value, timer.due] for name, timer in sorted(timers.items())
            }
        if quarantined is not None:
            document["quarantined"] = quarantined
        if state is None:
            document["state"] = False
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return cls(state, text.encode())

    @classmethod
    def read(cls, value: bytes, extra: bytes | None) -> KeyRow:
        """Return the row that the store or the changelog has as a value and what is beside it."""
        return cls(None if not value and _says_no_state(extra) else value, extra or None)

    @property
    def value(self) -> bytes:
        """Return the state as store and changelog have it; empty without one."""
        return self.state or b""

    def read_extra(self) -> RowExtra:
        """Return timers and quarantine.

        Raises:
            Exception: they are not what :meth:`of` wrote.
        """
        if not self.extra:
            return _NO_EXTRA
        document = json.loads(self.extra)
        timers = {
            name: Timer(due, TimerClock(clock))
            for name, (clock, due) in document.get("timers", {}).items()
        }
        return RowExtra(timers, document.get("quarantined"))

    @property
    def timers(self) -> Mapping[str, Timer]:
        """Return the timers by name, our own among them."""
        return self.read_extra().timers

    @property
    def quarantined(self) -> str | None:
        """Return why the key's facts are set aside, None where they are not."""
        return self.read_extra().quarantined


def _says_no_state(extra: bytes | None) -> bool:
    """Return whether ``extra`` says that there is no state; one that cannot be read does not."""
    try:
        return extra is not None and not json.loads(extra).get("state", True)
    except (ValueError, AttributeError):
        return False


class RowChange(NamedTuple):
    """A key's row before and after a commit, None where there is none.

    What was before may not be known: then entries of its timers stay in the index until they are
    due.
    """

    before: KeyRow | None
    after: KeyRow | None


class LoadedRows(NamedTuple):
    """Rows as a changelog has them, in its order and in columns.

    A value of None is a deletion; ``extras`` are None where no row has one.
    """

    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    extras: Sequence[bytes | None] | None = None
