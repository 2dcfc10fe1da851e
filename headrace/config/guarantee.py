"""What each channel promises about delivery, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headrace.config.models.processor import (
    ArrowProcessorConfig,
    CustomProcessorConfig,
    SimpleProcessorConfig,
    SparkProcessorConfig,
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
    from headrace.config.models.sink import SingleSinkConfig


#: The sinks that are exactly once, and why.
_ONCE = {
    DeltaSinkConfig: (
        "the Delta table takes rows and offsets in one transaction and refuses repetitions"
    ),
    SqlSinkConfig: (
        "the database takes rows and offsets in one transaction and refuses repetitions"
    ),
    KafkaSinkConfig: (
        "the brokers take records and offsets in one transaction, as readers with "
        "isolation.level=read_committed see"
    ),
}


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
    processor, sink = channel.processor, channel.sink
    if isinstance(processor, CustomProcessorConfig):
        return (
            DeliveryGuarantee.AT_LEAST_ONCE,
            "batches are delivered until answered; whether effects repeat is up to the processor",
        )
    if isinstance(processor, SimpleProcessorConfig) and processor.no_duplication:
        return (
            DeliveryGuarantee.AT_MOST_ONCE,
            "no_duplication commits before the function runs, so what fails then is not repeated",
        )
    if isinstance(processor, SimpleProcessorConfig):
        return (
            DeliveryGuarantee.AT_LEAST_ONCE,
            "offsets are committed after the function returns, so it may see records again",
        )
    if isinstance(sink, SeveralSinkConfig):
        return _several(sink)
    assert sink is not None, "the configuration demands a sink"
    return _of_sink(sink)


def _of_sink(sink: SingleSinkConfig) -> tuple[DeliveryGuarantee, str]:
    for kind, reason in _ONCE.items():
        if isinstance(sink, kind):
            return DeliveryGuarantee.EXACTLY_ONCE, reason
    if isinstance(sink, CustomSinkConfig):
        return _custom(sink)
    return (
        DeliveryGuarantee.AT_LEAST_ONCE,
        f"the {sink.type} sink keeps no offsets, so rows may be written again after a crash",
    )


def _several(sink: SeveralSinkConfig) -> tuple[DeliveryGuarantee, str]:
    """The weakest output decides."""
    for name, output in sink.outputs.items():
        delivery, reason = _of_sink(output)
        if delivery is not DeliveryGuarantee.EXACTLY_ONCE:
            return delivery, f"output {name}: {reason}"
    reason = "each output takes rows and offsets in one transaction and refuses repetitions"
    return (
        DeliveryGuarantee.EXACTLY_ONCE,
        f"{reason}; one that a crash left behind gets what it lacks",
    )


def _custom(sink: CustomSinkConfig) -> tuple[DeliveryGuarantee, str]:
    """Nothing is imported here: what the file demands of the sink is asked of it at the start."""
    if sink.guarantee == "exactly_once":
        reason = "takes rows and offsets in one transaction and refuses repetitions"
        return (
            DeliveryGuarantee.EXACTLY_ONCE,
            f"the sink of {sink.factory}, asked at the start, {reason}",
        )
    reason = "need not keep offsets, so rows may be written again after a crash"
    return (
        DeliveryGuarantee.AT_LEAST_ONCE,
        f"the sink of {sink.factory} {reason}; guarantee: exactly_once demands that it does",
    )


def _exceptions(channel: ChannelConfig) -> Iterator[str]:
    processor, on_error = channel.processor, channel.on_error
    if (
        isinstance(processor, SparkProcessorConfig | ArrowProcessorConfig)
        and processor.undecodable == "skip"
    ):
        yield "records that cannot be decoded are left out"
    if on_error.policy == "skip":
        yield f"a batch that failed {_times(on_error.max_attempts)} is left out"
    if on_error.dead_letter is not None:
        yield f"records that fail by themselves go to {on_error.dead_letter.topic}, at least once"


def _times(attempts: int | None) -> str:
    return "once" if attempts == 1 else f"{attempts} times"
