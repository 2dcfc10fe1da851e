"""Taking over a new configuration in a channel that runs."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import structlog

from headrace.config import Effect, diff
from headrace.config.wording import dotted
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.channel.assembly import Assembly
    from headrace.channel.settings import LiveSettings
    from headrace.clock import Deadline
    from headrace.config import Change, ChannelConfig, CoordinatorConfig
    from headrace.processors import BatchProcessor

log = structlog.get_logger(__name__)

#: What a channel that runs takes over without starting anew.
WHILE_RUNNING = frozenset({Effect.IN_PLACE, Effect.SHARING, Effect.TOPICS})


class Reconfiguring:
    """Changes the settings of one channel, and tells the parts that have to do something then.

    What a part reads from the settings each time it needs it takes no telling. Any thread.
    """

    def __init__(
        self, name: str, settings: LiveSettings, parts: Assembly, processor: BatchProcessor
    ) -> None:
        self._name = name
        self._settings = settings
        self._parts = parts
        self._processor = processor
        self._lock = Lock()

    def apply(self, config: ChannelConfig, deadline: Deadline) -> tuple[Change, ...]:
        """Go on with ``config``; see ``InboundKafkaChannel.reconfigure``."""
        with self._lock:
            changes = self._changes(config)
            if beyond := [c.path for c in changes if c.effect not in WHILE_RUNNING]:
                raise ConfigError([f"{path}: the channel has to start anew" for path in beyond])
            self._parts.dead_letters.recheck(config, deadline)
            if any(change.effect is Effect.TOPICS for change in changes):
                self._parts.topic_watcher.follow(config.subscription, deadline)
            self._take_over(config, changes)
            return changes

    def share_as(self, coordinator: CoordinatorConfig) -> None:
        """Share partitions in another way; see ``InboundKafkaChannel.replace_coordinator``."""
        with self._lock:
            config = self._settings.config.model_copy(update={"coordinator": coordinator})
            if found := [f"{dotted(steps)} {rest}" for steps, rest in config.contradictions()]:
                raise ConfigError([f"channels.{self._name}.{problem}" for problem in found])
            self._take_over(config, self._changes(config))

    def _changes(self, config: ChannelConfig) -> tuple[Change, ...]:
        return diff(self._settings.config, config, at=("channels", self._name))

    def _take_over(self, config: ChannelConfig, changes: tuple[Change, ...]) -> None:
        if not changes:
            return
        # first: where it raises, nothing is taken over, and the next try finds the changes again
        self._processor.on_reconfigured(config)
        shares_otherwise = config.coordinator != self._settings.config.coordinator
        self._settings.replace(config)
        if shares_otherwise:
            self._parts.wishes.share_as(config)
        self._parts.workers.resize(config.workers)
        self._parts.pausing.follow_settings()
        self._parts.committer.flush()
        self._parts.holdings.touch_all()
        log.info("channel_reconfigured", channel=self._name, changed=[c.path for c in changes])
