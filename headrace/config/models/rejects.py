"""The sections ``rejects`` and ``retry`` of a channel: what becomes of records that do not go on.

Each kind of processor has a model of its own, with the fields and the words that it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Tag, ValidationInfo

from headrace.config.errors import FieldConflict
from headrace.config.models.base import Hot, OnlyWith, Restarts, Section
from headrace.config.types.scalars import Count, OverflowPolicy, TopicName, WholeNumber, refuse
from headrace.config.types.units import NonNegativeSeconds, format_duration
from headrace.core.letter_headers import LetterNames

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Deliveries of a batch that is given up after some: 15 s of back-off with the defaults.
DEFAULT_ATTEMPTS = 5


class RetryConfig(Section):
    """Attempts to deliver a failed batch again, and the waits between them."""

    attempts: Hot[Count | None] = None
    """Deliveries of one batch before it is given up; the channel stops then with failing: fail.
    null: 5 where failing is skip or dead_letter, and no limit otherwise."""

    backoff: Hot[NonNegativeSeconds] = 0.5
    """The wait before the second delivery. It doubles with each further one."""

    max_backoff: Hot[NonNegativeSeconds] = 30.0
    """The longest wait between two deliveries."""

    def conflicts(self) -> Iterator[FieldConflict]:
        if self.backoff > self.max_backoff:
            yield FieldConflict(
                ("backoff",),
                f"is {format_duration(self.backoff)}, longer than max_backoff "
                f"({format_duration(self.max_backoff)}); lower it or raise max_backoff",
            )


#: The words by which a record goes to the topic.
_SENDING = ("dead_letter", "quarantine")

_OF_FAILING, _OF_UNDECODABLE, _OF_LATE = (
    OnlyWith.one_of(name, "dead_letter", "quarantine")
    for name in ("failing", "undecodable", "late")
)
_OF_OVERFLOW = OnlyWith.one_of("overflow", "dead_letter")


class RejectsConfig(Section):
    """The policies for records that do not go on, by reason."""

    only: ClassVar = {"topic": (_OF_FAILING,), "headers": (_OF_FAILING,)}

    #: Fields that say what becomes of records.
    _reasons: ClassVar = ("undecodable", "failing", "late", "overflow")

    topic: Restarts[TopicName | None] = None
    """The dead-letter topic of the channel. It has to exist, and must not be one that the channel
    reads."""

    headers: Restarts[LetterNames] = "headrace"
    """The names of the headers that say where a record comes from and why it is there: those of
    Headrace (headrace.topic), or those of Kafka Connect (__connect.errors.topic)."""

    #: The types of Headrace's own processors that have this model.
    processors: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def tag(cls) -> str:
        return "|".join(cls.processors)

    @property
    def sending(self) -> tuple[str, ...]:
        """Return the fields by which records go to the topic."""
        return tuple(name for name in self._reasons if getattr(self, name, None) in _SENDING)

    def conflicts(self) -> Iterator[FieldConflict]:
        if self.sending and self.topic is None:
            first = self.sending[0]
            yield FieldConflict(
                ("topic",),
                f"is missing; {first}: {getattr(self, first)} needs a topic, as in events.dead",
            )


class LimitedRejects(RejectsConfig):
    """Rejects that end the channel where there are too many."""

    only: ClassVar = {
        **RejectsConfig.only,
        "max_consecutive": (_OF_FAILING,),
        "max_per_thousand": (_OF_FAILING,),
    }

    failing: Hot[Literal["fail", "skip", "dead_letter"]] = "fail"
    """A record that fails. fail: its batch is delivered again as retry says, and then the channel
    stops. skip, dead_letter: the record is left out, or goes to the topic: at once where the error
    names it (PoisonRecordError); otherwise after retry.attempts the batch is skipped, or divided
    to find the record. Where no record is to blame (a sink is away, a time-out) the batch is
    delivered again without end."""

    max_consecutive: Hot[Count] = 10
    """The most dead letters in a row of one partition; the channel stops at the next."""

    max_per_thousand: Hot[Annotated[int, WholeNumber(1, 1000)]] = 100
    """The most dead letters within a thousand successive offsets of one partition; the channel
    stops at the next."""


class _Overflow(Section):
    """The policy for records that are too many."""

    overflow: Hot[Literal["wait", "skip", "dead_letter"]] = "wait"
    """Records of a partition beyond max_pending. wait: they wait in Kafka, however many there are.
    skip, dead_letter: they are left out, or go to the topic, in the transaction of the others."""

    max_pending: Hot[Count] = 10_000
    """The most records of a partition that may wait before some are left out."""

    overflow_choice: Hot[OverflowPolicy] = "newest"
    """The records that are left out: those that came last, those that have waited longest, those
    of some keys, or those that a class of your own does not keep (package.module:name)."""


_ONLY_OF_OVERFLOW = {
    name: (OnlyWith(("overflow",), ("skip", "dead_letter"), (), "overflow: skip or dead_letter"),)
    for name in ("max_pending", "overflow_choice")
}


class DeliveredRejects(LimitedRejects):
    """The policies for records that a function or a custom processor fails on."""

    processors: ClassVar[tuple[str, ...]] = ("simple", "custom")

    # a reload replaces the producer of dead letters; where they go in a transaction it cannot
    topic: Hot[TopicName | None] = None
    """The dead-letter topic of the channel. It has to exist, and must not be one that the channel
    reads."""

    headers: Hot[LetterNames] = "headrace"
    """The names of the headers that say where a record comes from and why it is there: those of
    Headrace (headrace.topic), or those of Kafka Connect (__connect.errors.topic)."""


class MicroBatchRejects(_Overflow, DeliveredRejects):
    """The policies for records that cannot be decoded, that a reducer fails on, or that are too
    many.
    """

    processors: ClassVar[tuple[str, ...]] = ("spark", "arrow")

    only: ClassVar = {
        **_ONLY_OF_OVERFLOW,
        "topic": (_OF_FAILING, _OF_UNDECODABLE, _OF_OVERFLOW),
        "headers": (_OF_FAILING, _OF_UNDECODABLE, _OF_OVERFLOW),
        "max_consecutive": (_OF_FAILING, _OF_UNDECODABLE),
        "max_per_thousand": (_OF_FAILING, _OF_UNDECODABLE),
    }

    undecodable: Hot[Literal["fail", "skip", "dead_letter"]] = "fail"
    """A record whose value cannot be decoded. fail: its batch fails, and failing says what comes
    then. skip, dead_letter: it is left out, or goes to the topic, all of a micro-batch at once."""


class KeyedRejects(_Overflow, RejectsConfig):
    """The policies for facts that cannot be read, that a reducer fails on, that are late, or that
    are too many. All that goes to the topic is in the transaction with the state.
    """

    processors: ClassVar[tuple[str, ...]] = ("keyed",)

    only: ClassVar = {
        **_ONLY_OF_OVERFLOW,
        "topic": (_OF_FAILING, _OF_UNDECODABLE, _OF_LATE, _OF_OVERFLOW),
        "headers": (_OF_FAILING, _OF_UNDECODABLE, _OF_LATE, _OF_OVERFLOW),
    }

    undecodable: Hot[Literal["fail", "skip", "dead_letter", "quarantine"]] = "fail"
    """A fact whose value cannot be read, or that has no key or no time. fail: as failing says.
    skip, dead_letter: it is left out, or goes to the topic; with quarantine the key's later facts
    go there as well."""

    failing: Hot[Literal["fail", "skip", "dead_letter", "quarantine"]] = "fail"
    """A fact that the reducer fails on. fail: its batch is delivered again as retry says, and then
    the channel stops. skip, dead_letter: it is left out, or goes to the topic; with quarantine the
    key's later facts go there as well."""

    late: Hot[Literal["skip", "dead_letter"] | None] = None
    """A fact that is later than processor.grace allows: it is left out, or goes to the topic."""

    @property
    def unreadable(self) -> str:
        """Return the policy for a fact that cannot be read: that of one that fails, by default."""
        return self.failing if self.undecodable == "fail" else self.undecodable


class StreamsRejects(RejectsConfig):
    """The policies for records that an operator of a topology fails on, or that are late. All that
    goes to the topic is in the transaction with the state.
    """

    processors: ClassVar[tuple[str, ...]] = ("streams",)

    only: ClassVar = {"topic": (_OF_FAILING, _OF_LATE), "headers": (_OF_FAILING, _OF_LATE)}

    failing: Hot[Literal["fail", "skip", "dead_letter"]] = "fail"
    """A record that cannot be read, or that an operator fails on. fail: its batch is delivered
    again as retry says, and then the channel stops. skip, dead_letter: it is left out, or goes to
    the topic."""

    late: Hot[Literal["skip", "dead_letter"]] = "skip"
    """A record whose windows were all over when it came: it is left out, or goes to the topic."""


class RekeyRejects(LimitedRejects):
    """The policies for records that have no such key, or that re-keying fails on."""

    processors: ClassVar[tuple[str, ...]] = ("rekey",)

    only: ClassVar = {
        **LimitedRejects.only,
        "topic": (_OF_FAILING, _OF_UNDECODABLE),
        "headers": (_OF_FAILING, _OF_UNDECODABLE),
    }

    undecodable: Restarts[Literal["fail", "skip", "dead_letter"]] = "fail"
    """A record without such a key, or whose value cannot be read. fail: its batch fails, and
    failing says what comes then. skip, dead_letter: it is left out, or goes to the topic, in the
    transaction of the others."""


#: One of the models; a section whose field is called ``type`` cannot say it otherwise.
RejectsModel: TypeAlias = type[RejectsConfig]

#: Each model, in the order of the processors that have it.
MODELS: tuple[RejectsModel, ...] = (
    DeliveredRejects,
    MicroBatchRejects,
    KeyedRejects,
    StreamsRejects,
    RekeyRejects,
)


class _Given(dict[str, Any]):
    """The mapping of a file, and the types of processors that it is for."""

    tag = ""


def _tag(value: Any) -> str:
    return value.tag if isinstance(value, _Given) else type(value).tag()


def _of_processor(value: Any, info: ValidationInfo) -> Any:
    """Return a value with the type of the processor beside it, by which its model is chosen."""
    processor = info.data.get("processor")
    if processor is None:
        # what is wrong with it is told; what would be known here is not known yet
        return DeliveredRejects()
    if isinstance(value, RejectsConfig):
        return value
    if not isinstance(value, Mapping):
        raise refuse("is not a mapping; fill it in, or leave the key out")
    given = _Given(value)
    given.tag = processor.rejects_section.tag()
    return given


#: The rejects of a channel, whose processor stands before them.
Rejects = Annotated[
    Annotated[DeliveredRejects, Tag(DeliveredRejects.tag())]
    | Annotated[MicroBatchRejects, Tag(MicroBatchRejects.tag())]
    | Annotated[KeyedRejects, Tag(KeyedRejects.tag())]
    | Annotated[StreamsRejects, Tag(StreamsRejects.tag())]
    | Annotated[RekeyRejects, Tag(RekeyRejects.tag())],
    Discriminator(_tag),
    BeforeValidator(_of_processor),
]


def no_rejects() -> Any:
    """Return what a file without rejects has there."""
    return {}
