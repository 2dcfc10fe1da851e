"""From the configuration to a channel's sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from headrace.config import SinkSite
from headrace.core.errors import HeadraceError, StartError
from headrace.core.user_text import describe_error
from headrace.sinks.contract import Guarantee
from headrace.sinks.custom import require_sink
from headrace.sinks.several import OutputGroup, SeveralSink, alone

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from headrace.config import ChannelConfig, KafkaConfig, SinkConfig
    from headrace.config.models.registry import RegistryConfig
    from headrace.sinks.contract import Sink


def open_sink(
    channel: ChannelConfig,
    member: str,
    kafka: KafkaConfig,
    registry: RegistryConfig | None = None,
) -> Sink[Any]:
    """Build a channel's sink for a member of this name; ``kafka`` is the cluster that is read.

    Without a ``registry`` it writes nothing that names schemas, which is enough to ask for offsets.

    Raises:
        ConfigError: the path, the url or a property cannot be used.
        StartError: the sink needs an extra that is not installed, its code cannot be used, or it
            promises less than its section says.
    """
    assert channel.sink is not None, "the configuration demands a sink"
    return _built(channel.sink, SinkSite(member, channel.group, kafka, registry))


def build_several(outputs: Mapping[str, SinkConfig], site: SinkSite) -> Sink[Any]:
    """Build a sink of several outputs: a group stands where its first output does.

    Outputs are a group whose sections name the same transaction.

    Raises:
        ConfigError: as :func:`open_sink`.
        StartError: as :func:`open_sink`.
    """
    grouped: dict[Hashable, dict[str, SinkConfig]] = {}
    for name, section in outputs.items():
        own = section.transaction
        key = ("alone", name) if own is None else (section.type, own)
        grouped.setdefault(key, {})[name] = section
    groups = [
        _group({name: _built(section, site) for name, section in sections.items()}, sections)
        for sections in grouped.values()
    ]
    return cast("Sink[Any]", SeveralSink(groups))


def _group(sinks: dict[str, Sink[Any]], sections: Mapping[str, SinkConfig]) -> OutputGroup:
    (name, sink), *others = sinks.items()
    if sections[name].transaction is None:
        return alone(name, sink)
    together = getattr(type(sink), "commit_together", None)
    if not callable(together) or any(type(other) is not type(sink) for _, other in others):
        raise StartError(
            f"outputs {', '.join(sinks)}: sinks of type {sections[name].type} have one "
            f"transaction, and {type(sink).__name__} has no commit_together for all of them; give "
            "it that, or have transaction be None in its section"
        )
    return OutputGroup(sinks, together)


def _built(section: SinkConfig, site: SinkSite) -> Sink[Any]:
    try:
        made = section.build(site)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        raise StartError(
            f"the sink of type {section.type} could not be built: {describe_error(error)}"
        ) from error
    sink = require_sink(made, f"the section of sink type {section.type}")
    if section.exactly_once is not None and sink.guarantee is not Guarantee.EXACTLY_ONCE:
        raise StartError(
            f"the sink of type {section.type} promises {sink.guarantee.value!r}, and its section "
            "says exactly once; correct one of them"
        )
    return sink
