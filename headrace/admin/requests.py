"""What the API takes, as models. Unknown keys are refused, and nothing is converted silently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from headrace.channel.pauses import PauseMode
from headrace.config.kinds.targets import Replay  # noqa: TC001 - pydantic looks it up

if TYPE_CHECKING:
    from typing_extensions import Self

#: The longest that an answer may be waited for, in seconds.
LONGEST_WAIT = 300.0

#: The longest pause that may be asked for by its length, in seconds: a year.
LONGEST_PAUSE = 366 * 86400.0

#: No control characters: what is sent here stands in logs and on terminals.
_PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"


def _only_text(value: Any) -> Any:
    if value is not None and not isinstance(value, str):
        raise PydanticCustomError("not_text", "Input should be a time as text")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_only_text, json_schema_input_type=AwareDatetime)]
Topic = Annotated[str, Field(min_length=1, max_length=249, pattern=_PRINTABLE)]
Partition = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
#: No log gets there, and every JSON reader has such numbers exactly.
Offset = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Reason = Annotated[str, Field(max_length=1000, pattern=_PRINTABLE)]
Logger = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_.]+$")]
Who = Annotated[str, Field(min_length=1, max_length=200, pattern=_PRINTABLE)]
Wait = Annotated[float, Field(strict=True, ge=0, le=LONGEST_WAIT, allow_inf_nan=False)]
Length = Annotated[float, Field(strict=True, gt=0, le=LONGEST_PAUSE, allow_inf_nan=False)]


class Change(BaseModel):
    """What every change may say."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    by: Who | None = None
    """Who wants it, as the log and the status have it; null: what the caller showed."""


class ScopedChange(Change):
    """A change of a channel, or of one partition."""

    topic: Topic | None = None
    """The topic of the one partition that is meant; null: the whole channel."""
    partition: Partition | None = None
    """That partition's number."""

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.topic is None) != (self.partition is None):
            raise PydanticCustomError("half", "topic and partition are given together or not")
        return self


class PauseRequest(ScopedChange):
    """A pause. The one that the same person began of the same scope is replaced, others go on."""

    mode: PauseMode = PauseMode.HOLD
    """What to do with partitions."""
    reason: Reason = ""
    """Why; the pause has it as its note."""
    until: Moment | None = None
    """When it ends by itself."""
    for_s: Length | None = None
    """After how many seconds it ends by itself, in place of until."""
    shorten: Annotated[bool, Field(strict=True)] = False
    """Also if the one that is replaced would have ended later, or not by itself."""
    wait_s: Wait = 0.0
    """For how long to wait until it is true that nothing is being processed."""

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.until is not None and self.for_s is not None:
            raise PydanticCustomError("two_ends", "until and for_s exclude each other")
        return self


class ResumeRequest(ScopedChange):
    """The end of a pause. Pauses of other reasons and other scopes go on."""

    pause_reason: Literal["operator", "downstream"] = "operator"
    """Whose pause ends: an operator's, or the processor's."""
    of: Who | None = None
    """The operator whose pause ends, as the status has it; null: who asks."""


class Replayed(Change):
    """A change that may have records read again."""

    replay: Replay | None = None
    """What becomes of the sink's output of them, where the sink keeps offsets: append keeps it, and
    has results go there again. To have it replaced takes a stopped channel."""


class SeekRequest(Replayed):
    """Where one partition of a paused channel goes on."""

    topic: Topic
    """The topic."""
    partition: Partition
    """The partition's number."""
    offset: Offset
    """The next record to deliver."""
    wait_s: Wait = 30.0
    """For how long to wait until it is done and committed."""


class ResetRequest(ScopedChange, Replayed):
    """Where the partitions of a paused channel go on that this process holds, or one of them."""

    to: Annotated[str, Field(min_length=1, max_length=100, pattern=_PRINTABLE)]
    """earliest, latest, datetime:TIME, offset:N or shift-by:N, as for headrace offsets reset."""
    wait_s: Wait = 60.0
    """For how long to wait until it is done and committed."""


class SkipRequest(Change):
    """A record that is left out, as one that no processing survives."""

    topic: Topic
    """The topic."""
    partition: Partition
    """The partition's number."""
    offset: Offset
    """The record's own offset."""
    reason: Annotated[str, Field(min_length=1, max_length=1000, pattern=_PRINTABLE)]
    """Why; the log keeps it."""
    force: Annotated[bool, Field(strict=True)] = False
    """Whether it may be a record that is not in the batch that is out or fails."""


class LogLevelRequest(Change):
    """How much is logged."""

    level: Literal["debug", "info", "warning", "error"] | None
    """The least severity that is logged; null: a logger goes by the process's level again."""
    logger: Logger | None = None
    """The module or library that is meant, such as headrace.channel; null: the process."""
    for_s: Length | None = None
    """After how many seconds the level goes back to what it was; null: it stays."""

    @model_validator(mode="after")
    def _somebody_elses(self) -> Self:
        if self.level is None and self.logger is None:
            raise PydanticCustomError("no_level", "the process has to have a level")
        if self.logger == "root":
            raise PydanticCustomError("root", "leave logger out where the process is meant")
        return self


class ReloadRequest(Change):
    """The configuration file is read again."""

    wait_s: Wait = 60.0
    """For how long to wait until all of it is in effect."""


class StopRequest(Change):
    """The process stops, as by SIGTERM."""

    reason: Reason = ""
    """Why."""
