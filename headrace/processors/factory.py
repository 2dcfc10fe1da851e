"""From a channel's configuration to its processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import config
from headrace.core.errors import HeadraceError, ImportPathError, StartError
from headrace.core.user_text import describe_error
from headrace.processors.contract import BatchProcessor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.config.models.registry import RegistryConfig


def build_processor(
    channel: config.ChannelConfig,
    spark: Callable[[], object],
    member: str,
    kafka: config.KafkaConfig | None = None,
    state: Path | None = None,
    *,
    registry: RegistryConfig | None = None,
) -> BatchProcessor:
    """Build what ``channel.processor`` describes, for a member of this name.

    ``spark`` is called only where it is needed. ``kafka`` is the cluster that is read, ``state``
    the folder of the channel's own: for its state, and for what call its reducer is in, and
    ``registry`` has the schemas of its values. A process imports the libraries of the processors
    that it builds only.

    Raises:
        StartError: code that it names cannot be imported or has a wrong shape.
        ConfigError: the sink's path cannot be used, or Spark cannot be told how to reach Kafka.
    """
    chosen, cluster = channel.processor, kafka or config.KafkaConfig()
    try:
        made = chosen.build(config.ProcessorSite(channel, member, cluster, state, spark, registry))
    except (HeadraceError, AssertionError):
        raise
    except (Exception, SystemExit) as error:
        raise StartError(
            f"the processor of type {chosen.type} could not be built: {describe_error(error)}"
        ) from error
    if not isinstance(made, BatchProcessor):
        maker = repr(chosen.code_paths[0]) if chosen.code_paths else f"type {chosen.type}"
        raise ImportPathError(
            f"{maker} returned a {type(made).__name__}; it must return a headrace.BatchProcessor"
        )
    return made
