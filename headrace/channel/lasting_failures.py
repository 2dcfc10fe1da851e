"""Failures that last: they end a bounded run or have a partition rest; code may be named."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import structlog

from headrace.channel.error_scope import ErrorScope, causes, classify_error
from headrace.channel.pauses import PauseReason
from headrace.core.errors import (
    BatchTimeoutError,
    ChannelFailedError,
    ConfigError,
    InvalidResponseError,
    JobTimeoutError,
    ResultMisfitError,
)
from headrace.core.user_text import describe_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.pauses import Pause

log = structlog.get_logger(__name__)

#: Attempts at one thing after which a bounded run ends, where ``retry.attempts`` says no
#: other number: 15 s of back-off with the defaults.
BOUNDED_ATTEMPTS = 5

#: The same while a server is away, which may come back: two to four minutes with the defaults.
BOUNDED_ATTEMPTS_AWAY = 12

#: Seconds that a bounded run waits for an operator to act on a state that cannot be relied on: a
#: restore that is held back may go on by itself meanwhile.
BOUNDED_REST = 60.0

#: Failures without a success before them, after which it is said that the code is at fault.
FIRST_FAILURES = 3

#: What Python and Spark raise where code does not fit what it is given, whatever the values are.
_OF_CODE = (
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    SyntaxError,
    NotImplementedError,
    InvalidResponseError,
    ResultMisfitError,
)

#: The same in the text of an error of Spark's, and of Arrow's for a column that a table has not.
_SIGNS_OF_CODE = (
    "AnalysisException",
    "[UNRESOLVED_COLUMN",
    "[PARSE_SYNTAX_ERROR]",
    "does not exist in schema",
    "No match for FieldRef",
)

#: Of no server: they do not pass by waiting.
_LASTING = (
    ImportError,
    MemoryError,
    BatchTimeoutError,
    JobTimeoutError,
    ConfigError,
    ResultMisfitError,
)


#: What nothing but a change of the code, its surroundings or the sink's place cures.
_INCURABLE = (ResultMisfitError, ImportError, ConfigError)


class LastingFailures:
    """Counts for one channel what is tried again. Any thread; does not block."""

    def __init__(self, environment: ChannelEnvironment, *, is_bounded: bool) -> None:
        self._environment = environment
        self._is_bounded = is_bounded
        self._lock = Lock()
        self._has_worked = False
        self._first: list[BaseException] = []

    def note_retry(
        self, owned: OwnedPartition, error: BaseException, at: int | None = None
    ) -> None:
        """Fail the channel where a bounded run has tried the same often enough.

        ``owned.retries`` says how often it was tried, ``error`` how the last attempt ended. ``at``
        is the offset of the batch, None where the start position is not known yet.
        """
        if not self._is_bounded:
            return
        if owned.retries.attempts >= self._most_attempts(error):
            times = f"{owned.retries.attempts} times"
            what = "its start position" if at is None else f"the batch at offset {at}"
            self._environment.fail(
                ChannelFailedError(
                    f"channel {self._environment.name}: {owned.partition}: {what} failed "
                    f"{times}, the last with {describe_error(error)}; the bounded run ends "
                    "here. What is committed stays: fix the cause and start it again"
                )
            )

    def is_to_rest(self, owned: OwnedPartition, error: BaseException) -> bool:
        """Return whether a partition has tried often enough what no other try can cure.

        Always False of a bounded run, which ends then.
        """
        if self._is_bounded or not any(isinstance(each, _INCURABLE) for each in causes(error)):
            return False
        most = self._environment.config.attempts or BOUNDED_ATTEMPTS
        return owned.retries.attempts >= most

    def look_at_rests(self, pauses: Iterable[Pause], now: float) -> float | None:
        """Fail the channel where a bounded run has waited long enough for an operator to act.

        ``now`` is in seconds since the epoch, and so is the time that is returned, at which to look
        again; None where nothing waits.
        """
        waiting = [pause for pause in pauses if pause.reason is PauseReason.STATE]
        if not (self._is_bounded and waiting):
            return None
        first = min(waiting, key=lambda pause: pause.since)
        if now < first.since + BOUNDED_REST:
            return first.since + BOUNDED_REST
        name = self._environment.name
        what = (
            f"channel {name}" if first.partition is None else f"channel {name}: {first.partition}"
        )
        self._environment.fail(
            ChannelFailedError(
                f"{what} rests: {first.note}; the bounded run ends here. What is committed stays: "
                "do what that says and start it again"
            )
        )
        return None

    def _most_attempts(self, error: BaseException) -> int:
        most = self._environment.config.attempts or BOUNDED_ATTEMPTS
        is_away = classify_error(error) is ErrorScope.ENVIRONMENT and not any(
            isinstance(each, _LASTING) for each in causes(error)
        )
        return max(most, BOUNDED_ATTEMPTS_AWAY) if is_away else most

    def note_success(self) -> None:
        """Record that the channel's code works: a batch was answered."""
        if not self._has_worked:
            with self._lock:
                self._has_worked = True
                self._first.clear()

    def note_failure(self, error: BaseException) -> None:
        """Record a failure; log once that the code is at fault if no batch ever succeeded."""
        with self._lock:
            if self._has_worked or len(self._first) >= FIRST_FAILURES:
                return
            self._first.append(error)
            is_named = len(self._first) == FIRST_FAILURES and all(map(is_of_code, self._first))
        if is_named:
            log.error(
                "processor_never_worked",
                channel=self._environment.name,
                code=self._code(),
                failures=FIRST_FAILURES,
                error=_first_line(error),
                reason=(
                    f"no batch has been processed since the start, and the first {FIRST_FAILURES} "
                    "failed with what code that does not fit raises; nothing is committed. "
                    "headrace reduce tries the code on records without committing"
                ),
            )

    def _code(self) -> str:
        """Return the import path of what fails; of a query, which has none, the type."""
        channel = self._environment.config
        called = channel.processor.called(channel)
        paths = channel.processor.code_paths if called is None else called[:1]
        return next(iter(paths), channel.processor.type)


def is_of_code(error: BaseException) -> bool:
    """Return whether an error is one of code that does not fit, whatever the values are."""
    return any(
        isinstance(each, _OF_CODE)
        or type(each).__name__ == "AnalysisException"
        or any(sign in str(each) for sign in _SIGNS_OF_CODE)
        for each in causes(error)
    )


def _first_line(error: BaseException) -> str:
    return describe_error(error).splitlines()[0]
