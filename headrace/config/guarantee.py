"""The delivery guarantee of each channel, with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.config.models.rejects import KeyedRejects, MicroBatchRejects, RekeyRejects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.delivery import DeliveryGuarantee
    from headrace.config.models.channel import ChannelConfig


@dataclass(frozen=True, slots=True)
class ChannelGuarantee:
    """A channel's delivery guarantee, with the reason in one sentence."""

    delivery: DeliveryGuarantee
    reason: str

    def __str__(self) -> str:
        return f"{self.delivery.value}: {self.reason}"


def guarantee(channel: ChannelConfig) -> ChannelGuarantee:
    """Return what the channel promises."""
    delivery, reason = channel.processor.promise(channel)
    return ChannelGuarantee(delivery, "; ".join([reason, *_exceptions(channel)]))


def _exceptions(channel: ChannelConfig) -> Iterator[str]:
    rejects = channel.rejects
    match rejects:
        case MicroBatchRejects(undecodable="skip"):
            yield "records that cannot be decoded are left out"
        case MicroBatchRejects(undecodable="dead_letter"):
            yield f"records that cannot be decoded go to {rejects.topic}, at least once"
        case RekeyRejects(undecodable="skip"):
            yield "records without such a key are left out"
        case RekeyRejects(undecodable="dead_letter"):
            yield f"records without such a key go to {rejects.topic}, once"
    yield from channel.processor.left_out(channel)
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
