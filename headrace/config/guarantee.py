"""What each channel promises about delivery, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headrace.config.models.processor import (
    CustomProcessorConfig,
    KeyedProcessorConfig,
    MicroBatchConfig,
    RekeyProcessorConfig,
    SimpleProcessorConfig,
)
from headrace.config.models.sink import (
    CustomSinkConfig,
    DeltaSinkConfig,
    KafkaSinkConfig,
    SeveralSinkConfig,
    SqlSinkConfig,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.models.channel import ChannelConfig
    from headrace.config.models.sink import SinkConfig


#: What a sink does that is exactly once.
_ATOMIC = "takes rows and offsets in one transaction and refuses repetitions"


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
    if isinstance(sink, SeveralSinkConfig):
        # the weakest output decides
        for name, output in sink.outputs.items():
            delivery, reason = _of_sink(output)
            if delivery is not DeliveryGuarantee.EXACTLY_ONCE:
                return delivery, f"output {name}: {reason}"
        return (
            DeliveryGuarantee.EXACTLY_ONCE,
            f"each output {_ATOMIC}; one that a crash left behind gets what it lacks",
        )
    promise = _promise(sink)
    if promise is not None:
        return DeliveryGuarantee.EXACTLY_ONCE, promise
    if isinstance(sink, CustomSinkConfig):
        reason = (
            f"the sink of {sink.factory} need not keep offsets, so rows may be written again "
            "after a crash; guarantee: exactly_once demands that it does"
        )
    else:
        reason = (
            f"the {sink.type} sink keeps no offsets, so rows may be written again after a crash"
        )
    return DeliveryGuarantee.AT_LEAST_ONCE, reason


def _promise(sink: SinkConfig) -> str | None:
    """Return why a sink is exactly once, None where it is not."""
    match sink:
        case DeltaSinkConfig():
            return f"the Delta table {_ATOMIC}"
        case SqlSinkConfig():
            return f"the database {_ATOMIC}"
        case KafkaSinkConfig():
            return (
                "the brokers take records and offsets in one transaction, as readers with "
                "isolation.level=read_committed see"
            )
        case CustomSinkConfig(guarantee="exactly_once"):
            # nothing is imported here: what the file demands is asked of the sink at the start
            return f"the sink of {sink.factory}, asked at the start, {_ATOMIC}"
        case _:
            return None


def _exceptions_of_keyed(processor: KeyedProcessorConfig) -> Iterator[str]:
    what = {
        "facts that cannot be reduced": processor.on_poison,
        f"facts that are more than {processor.grace:g} s late"
        if processor.grace is not None
        else "": processor.late,
    }
    for facts, policy in what.items():
        if policy == "drop":
            yield f"{facts} are left out"
        elif policy in {"dead_letter", "quarantine"}:
            yield f"{facts} go to {processor.dead_letter}, once"


def _exceptions(channel: ChannelConfig) -> Iterator[str]:
    processor, on_error = channel.processor, channel.on_error
    letters = on_error.dead_letter
    if isinstance(processor, MicroBatchConfig) and processor.undecodable == "skip":
        yield "records that cannot be decoded are left out"
    if isinstance(processor, MicroBatchConfig) and processor.undecodable == "dead_letter":
        assert letters is not None, "the configuration demands a topic"
        yield f"records that cannot be decoded go to {letters.topic}, at least once"
    match processor:
        case KeyedProcessorConfig():
            yield from _exceptions_of_keyed(processor)
        case RekeyProcessorConfig(dead_letter=str(topic)):
            yield f"records without such a key go to {topic}, once"
        case RekeyProcessorConfig(on_poison="drop"):
            yield "records without such a key are left out"
    admission = channel.admission
    if admission.sheds:
        copied = "" if admission.to is None else f" and goes to {admission.to}, once"
        yield (
            f"what is beyond {admission.max_pending} waiting records of a partition is shed "
            f"({admission.shed}){copied}"
        )
    if on_error.policy == "skip":
        attempts = on_error.max_attempts
        times = "once" if attempts == 1 else f"{attempts} times"
        yield f"a batch that failed {times} is left out"
    if letters is not None and on_error.policy == "dead_letter":
        yield f"records that fail by themselves go to {letters.topic}, at least once"
