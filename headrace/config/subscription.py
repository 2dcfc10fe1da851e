"""The topics that a channel reads: names, and patterns that topics may match."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What tells a pattern from a name: no topic's name may begin with it.
PATTERN_SIGN = "^"

#: How names begin that brokers and their tools use for themselves. No pattern matches those.
INTERNAL_SIGN = "__"


def is_pattern(entry: str) -> bool:
    """Return whether an entry of a channel's ``topics`` is a pattern."""
    return entry.startswith(PATTERN_SIGN)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The entries of a channel's ``topics``, in their order: names and patterns.

    A pattern is a regular expression of Python. It matches names that begin as it says, as with
    librdkafka; one that ends with ``$`` matches whole names only.
    """

    entries: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the entries that are names: these topics have to exist."""
        return tuple(entry for entry in self.entries if not is_pattern(entry))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the entries that are patterns."""
        return tuple(entry for entry in self.entries if is_pattern(entry))

    def matches(self, topic: str) -> bool:
        """Return whether a pattern matches the topic. Those for internal use match none."""
        internal = topic.startswith(INTERNAL_SIGN)
        return not internal and any(re.match(pattern, topic) for pattern in self.patterns)

    def covers(self, topic: str) -> bool:
        """Return whether the topic is named, or matched by a pattern."""
        return topic in self.names or self.matches(topic)

    def fruitless(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Return the patterns that match none of ``topics``."""
        known = tuple(topics)
        return tuple(p for p in self.patterns if not any(map(Subscription((p,)).matches, known)))

    def __str__(self) -> str:
        return ", ".join(self.entries)
