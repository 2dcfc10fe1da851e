"""Facts and timers that cannot be reduced: the errors that name them, and their dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import PoisonRecordError, RetryableError
from headrace.core.letter_headers import Failure, Stage
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.api import Fired
from headrace.extensions.keyed.letters import dead_letter

if TYPE_CHECKING:
    from headrace.extensions.keyed.reduction import Reduction
    from headrace.extensions.keyed.tables import Fact, OutputRow, Touched


def refusal_of(touched: Touched, last: Fact | Fired, reason: str) -> Exception:
    """Return the error that fails a micro-batch for a fact or a timer of a key."""
    shown = touched.key[:100].decode("utf-8", "replace")
    if isinstance(last, Fired):
        return RetryableError(
            f"key {shown!r} of partition {touched.partition}: timer {last.name!r}, due at "
            f"{last.due}: {reason}"
        )
    source = TopicPartition(last.source, touched.partition)
    return PoisonRecordError(source, last.offset, f"key {shown!r}: {reason}")


def letter_of(  # noqa: PLR0917 - what is at fault, and why
    reduction: Reduction,
    touched: Touched,
    last: Fact | Fired,
    message: str,
    reason: BaseException | str | None = None,
    stage: Stage = Stage.PROCESS,
) -> OutputRow:
    """Return the dead letter of a fact or a timer of a key."""
    error = reason if isinstance(reason, BaseException) else None
    failure = Failure(message, error, stage, reduction.reducer)
    letters, key = reduction.settings.letters, touched.key
    partition = str(touched.partition)
    if isinstance(last, Fired):
        named = {"partition": partition, "timer": last.name}
        return dead_letter(letters, key, None, last.due, failure, named, None)
    named = {
        "topic": last.source,
        "partition": partition,
        "offset": str(last.offset),
        "timestamp": str(last.ts),
    }
    return dead_letter(letters, key, last.value, last.ts, failure, named, last.headers)
