"""Checks of a configuration that need no server.

The libraries that they ask take a while to import, and are imported where there is something to
ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config import single_sinks
from headrace.core.extras import Extra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import ChannelConfig, Config
    from headrace.config.errors import ConfigProblem, Steps
    from headrace.config.models.processor import ProcessorConfig


_PROPERTIES = ("kafka", "properties")


def preflight(config: Config) -> Iterator[ConfigProblem]:
    """Yield what Kafka's client and the decoder would refuse at the start, and missing extras.

    For ``load``. Connects to nothing; blocks for some milliseconds, and imports what it asks.
    """
    yield from _extras(config)
    yield from _kafka(config)
    for name, channel in config.channels.items():
        for steps, sentence in (*channel.processor.refused(), *_schema_file(channel.processor)):
            yield ("channels", name, "processor", *steps), sentence
        for at, sink in single_sinks(channel.sink).items():
            for steps, sentence in sink.refused():
                yield ("channels", name, *at, *steps), sentence


def _schema_file(processor: ProcessorConfig) -> Iterator[ConfigProblem]:
    """Yield why a file is no schema to read by."""
    chosen = processor.reads_by
    if processor.framed is None or chosen is None or chosen.file is None:
        return
    if processor.framed[1] == "avro":
        from headrace.formats.avro import reader as avro  # noqa: PLC0415 - few channels have Avro

        fault = avro.file_fault(chosen.file)
    elif Extra.PROTOBUF.installed:
        from headrace.formats.protobuf import reader as protobuf  # noqa: PLC0415

        fault = protobuf.file_fault(chosen.file, chosen.message)
    else:
        return
    if fault is not None:
        yield ("reader_schema", "file"), fault


def _extras(config: Config) -> Iterator[ConfigProblem]:
    for steps, extra in needed_extras(config):
        if not extra.installed:
            yield steps, extra.advice


def needed_extras(config: Config) -> Iterator[tuple[Steps, Extra]]:
    """Yield the extras that a configuration takes, each with the place that asks for it."""
    if config.tracing.endpoint is not None:
        yield ("tracing", "endpoint"), Extra.OTEL
    if config.metrics.otlp is not None:
        yield ("metrics", "otlp"), Extra.OTEL
    if config.logging.otlp is not None:
        yield ("logging", "otlp"), Extra.OTEL
    for name, channel in config.channels.items():
        if channel.enabled:
            yield from ((("channels", name, *steps), extra) for steps, extra in _extras_of(channel))


def _extras_of(channel: ChannelConfig) -> Iterator[tuple[Steps, Extra]]:
    yield from ((("processor", *steps), extra) for steps, extra in channel.processor.extras)
    for steps, sink in single_sinks(channel.sink).items():
        yield from (((*steps, *key), extra) for key, extra in sink.extras)


def _kafka(config: Config) -> Iterator[ConfigProblem]:
    kafka = config.kafka
    sections = (kafka.tls, kafka.sasl, kafka.oauth)
    if not kafka.properties and all(section is None for section in sections):
        return
    from headrace.kafka.clients import (  # noqa: PLC0415
        PREFETCH_SHARE,
        refusal_together,
        refusals,
    )
    from headrace.kafka.features import missing_features  # noqa: PLC0415

    missing = list(missing_features(kafka))
    yield from missing
    if not kafka.properties:
        return
    places = {steps for steps, _ in missing}
    refused = [((*_PROPERTIES, name), sentence) for name, sentence in refusals(kafka)]
    yield from ((steps, sentence) for steps, sentence in refused if steps not in places)
    if missing or refused:
        return
    budgets: dict[int, str] = {}
    for name, channel in config.channels.items():
        if channel.enabled and not channel.by_reference:
            budgets.setdefault(channel.buffer.max_bytes, name)
    for budget, name in budgets.items():
        reason = refusal_together(config.kafka, int(budget * PREFETCH_SHARE))
        if reason is not None:
            sentence = f"do not go together in channel {name}: librdkafka says {reason}"
            yield _PROPERTIES, sentence
            return
