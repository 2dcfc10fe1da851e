"""Dead letters of channels by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.core.letter_headers import shortened
from headrace.extensions.keyed.tables import DEAD_LETTERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.core.letter_headers import Failure, LetterHeaders
    from headrace.extensions.keyed.tables import OutputRow


def dead_letter(  # noqa: PLR0917 - a record's parts
    letters: LetterHeaders,
    key: bytes | None,
    value: bytes | None,
    ts: int,
    failure: Failure,
    said: Mapping[str, str],
    headers: Any,
) -> OutputRow:
    """Return a record for the dead-letter topic, as in :data:`OUTPUT`."""
    ours = letters.of({**said, "message": shortened(failure.message)}, failure)
    named = [{"key": name, "value": data} for name, data in ours]
    return DEAD_LETTERS, key, value, max(0, ts), [*(headers or ()), *named]
