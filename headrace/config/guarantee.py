"""What each channel promises about delivery, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headrace.config.models.processor import (
    CustomProcessorConfig,
    KeyedProcessorConfig,
    SimpleProcessorConfig,
)
from headrace.config.models.rejects import KeyedRejects, MicroBatchRejects, RekeyRejects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.models.channel import ChannelConfig
    from headrace.config.models.sink import SinkConfig


class DeliveryGuarantee(Enum):
    """How often the effect of a record takes place."""

    EXACTLY_ONCE = "exactly-once"
    """Once, also after a crash or a change of owner."""

    AT_LEAST_ONCE = "at-least-once"
    """Once; after a crash or a change of owner perhaps again."""

    AT_MOST_ONCE = "at-most-once"
    """Once; after a crash or a change of owner perhaps not at all."""


@dataclass(frozen=True, slots=True)
class ChannelGuarantee:
    """A channel's delivery guarantee, with the reason in one sentence."""

    delivery: DeliveryGuarantee
    reason: str

    def __str__(self) -> str:
        return f"{self.delivery.value}: {self.reason}"


def guarantee(channel: ChannelConfig) -> ChannelGuarantee:
    """Return what the channel promises."""
    delivery, reason = _base(channel)
    return ChannelGuarantee(delivery, "; ".join([reason, *_exceptions(channel)]))


def _base(channel: ChannelConfig) -> tuple[DeliveryGuarantee, str]:
    match channel.processor:
        case CustomProcessorConfig():
            return DeliveryGuarantee.AT_LEAST_ONCE, (
                "batches are delivered until answered; whether effects repeat is up to the "
                "processor"
            )
        case SimpleProcessorConfig(no_duplication=True):
            return DeliveryGuarantee.AT_MOST_ONCE, (
                "no_duplication commits before the function runs, so what fails then is not "
                "repeated"
            )
        case SimpleProcessorConfig():
            return DeliveryGuarantee.AT_LEAST_ONCE, (
                "offsets are committed after the function returns, so it may see records again"
            )
        case KeyedProcessorConfig():
            return DeliveryGuarantee.EXACTLY_ONCE, (
                "the brokers take outputs, state and offsets in one transaction, as readers with "
                "isolation.level=read_committed see"
            )
    assert channel.sink is not None, "the configuration demands a sink"
    return _of_sink(channel.sink)


def _of_sink(sink: SinkConfig) -> tuple[DeliveryGuarantee, str]:
    reason = sink.exactly_once
    if reason is not None:
        return DeliveryGuarantee.EXACTLY_ONCE, reason
    return DeliveryGuarantee.AT_LEAST_ONCE, sink.at_least_once


def _exceptions_of_keyed(processor: KeyedProcessorConfig, rejects: KeyedRejects) -> Iterator[str]:
    reasons = {
        "facts that cannot be read": rejects.unreadable,
        "facts that cannot be reduced": rejects.failing,
    }
    if rejects.unreadable == rejects.failing:
        reasons = {"facts that cannot be reduced": rejects.failing}
    if processor.grace is not None:
        reasons[f"facts that are more than {processor.grace:g} s late"] = rejects.late or "skip"
    for facts, policy in reasons.items():
        if policy == "skip":
            yield f"{facts} are left out"
        elif policy in {"dead_letter", "quarantine"}:
            yield f"{facts} go to {rejects.topic}, once"


def _exceptions(channel: ChannelConfig) -> Iterator[str]:
    processor, rejects = channel.processor, channel.rejects
    match rejects:
        case MicroBatchRejects(undecodable="skip"):
            yield "records that cannot be decoded are left out"
        case MicroBatchRejects(undecodable="dead_letter"):
            yield f"records that cannot be decoded go to {rejects.topic}, at least once"
        case RekeyRejects(undecodable="skip"):
            yield "records without such a key are left out"
        case RekeyRejects(undecodable="dead_letter"):
            yield f"records without such a key go to {rejects.topic}, once"
    if isinstance(processor, KeyedProcessorConfig) and isinstance(rejects, KeyedRejects):
        yield from _exceptions_of_keyed(processor, rejects)
    if isinstance(rejects, MicroBatchRejects | KeyedRejects) and rejects.overflow != "wait":
        copied = f" and goes to {rejects.topic}, once" if rejects.overflow == "dead_letter" else ""
        yield (
            f"what is beyond {rejects.max_pending} waiting records of a partition is left out "
            f"({rejects.overflow_choice}){copied}"
        )
    if channel.failing_batches == "skip":
        times = "once" if channel.attempts == 1 else f"{channel.attempts} times"
        yield f"a batch that failed {times} is left out"
    if channel.failing_batches == "dead_letter":
        yield f"records that fail by themselves go to {rejects.topic}, at least once"
