"""What happens when a batch fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationInfo

from headrace.config.contradiction import Contradiction
from headrace.config.kinds.scalars import Count, WholeNumber
from headrace.config.kinds.text import Topic
from headrace.config.kinds.units import Pause, format_duration
from headrace.config.model.base import Hot, Section, derived, unset

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Attempts before a batch is skipped or the channel stops: 15 s of back-off with the defaults.
_MAX_ATTEMPTS = 5


def _default_attempts(info: ValidationInfo) -> int | None:
    return None if info.data.get("policy") == "retry" else _MAX_ATTEMPTS


class DeadLetterConfig(Section):
    """Where records go that fail by themselves, and how many may before the channel stops."""

    topic: Hot[Topic]
    """The dead-letter topic. It has to exist, and must not be one that the channel reads."""

    max_consecutive: Hot[Count] = 10
    """The most records in a row of one partition; the channel stops at the next."""

    max_per_thousand: Hot[Annotated[int, WholeNumber(1, 1000)]] = 100
    """The most records within a thousand successive offsets of one partition; the channel stops at
    the next."""


class OnErrorConfig(Section):
    """How often a failed batch is delivered again, and what comes after that."""

    policy: Hot[Literal["retry", "skip", "stop", "dead_letter"]] = "retry"
    """Deliver the batch again for ever; or, after max_attempts, skip it, stop the channel, or look
    for the records that fail and put those into a topic. Where no record is to blame (a sink is
    away, a time-out), skip and dead_letter deliver it again for ever, too."""

    max_attempts: Hot[Annotated[Count | None, derived(_default_attempts, Count | None)]] = Field(
        default_factory=unset, validate_default=True
    )
    """Deliveries of one batch before it is given up; by default 5, and none with policy: retry."""

    backoff: Hot[Pause] = 0.5
    """The wait before the second delivery. It doubles with each further one."""

    max_backoff: Hot[Pause] = 30.0
    """The longest wait between two deliveries."""

    dead_letter: Hot[DeadLetterConfig | None] = None
    """The dead-letter topic, for policy: dead_letter."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield what the policy does not have or lacks, and waits that shrink."""
        if self.policy == "retry" and self.max_attempts is not None:
            yield Contradiction(
                ("max_attempts",),
                "has no effect with policy: retry, which never gives up; "
                "leave it out, or write policy: skip or policy: stop",
            )
        if self.policy == "dead_letter" and self.dead_letter is None:
            yield Contradiction(
                ("dead_letter",), "is missing; name a topic, as in {topic: events.dead}"
            )
        if self.policy != "dead_letter" and self.dead_letter is not None:
            yield Contradiction(
                ("dead_letter",),
                f"has no effect with policy: {self.policy}; "
                "leave it out, or write policy: dead_letter",
            )
        if self.backoff > self.max_backoff:
            yield Contradiction(
                ("backoff",),
                f"is {format_duration(self.backoff)}, longer than max_backoff "
                f"({format_duration(self.max_backoff)}); lower it or raise max_backoff",
            )
