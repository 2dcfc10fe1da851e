"""The release line of Kafka that the brokers are of, as far as they tell clients."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import Consumer, KafkaException

from headrace.kafka import clients

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.core.clock import Deadline

log = structlog.get_logger(__name__)

#: How the client says which versions of a request a broker takes, where ``debug`` has ``feature``.
_TAKES = re.compile(r"ApiKey \S+ \((\d+)\) Versions \d+\.\.(\d+)")

#: The request by which 4.3 differs from 4.2 for clients, and the version that 4.3 takes first.
_DESCRIBE_LOG_DIRS, _SINCE_4_3 = 35, 5

#: What 4.3 has of that, and no release of which it is known has more.
LOSING_MARKS = "4.3.0 and 4.3.1"


def is_of_4_3(lines: Iterable[str]) -> bool:
    """Return whether a broker said, in these lines of the client, that it is of 4.3.

    Brokers do not tell clients their version. They say which versions of requests they take, and a
    later line may take the same.
    """
    found = (match for line in lines if (match := _TAKES.search(line)) is not None)
    return any(
        (int(match[1]), int(match[2])) == (_DESCRIBE_LOG_DIRS, _SINCE_4_3) for match in found
    )


class _Lines:
    """Keeps what a client logs."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def log(self, _: int, message: str, *arguments: object) -> None:
        """Keep a line."""
        self.said.append(message % arguments if arguments else message)


def lose_marks(client_properties: Mapping[str, Any], deadline: Deadline) -> bool | None:
    """Return whether the brokers' line loses marks of transactions. Blocks.

    One broker is asked; None where it does not answer by the deadline.
    """
    lines = _Lines()
    settings = clients.consumer(client_properties, "headrace-versions")
    settings |= {"debug": "feature", "logger": lines, "log_level": 7}
    try:
        with closing(Consumer(settings)) as consumer:
            consumer.list_topics(timeout=deadline.left)
            # what the client logs is handed over by this
            consumer.poll(0)
    except KafkaException:
        return None
    return is_of_4_3(lines.said)


def warn_of_lost_marks(client_properties: Mapping[str, Any], deadline: Deadline) -> bool:
    """Log whether brokers lose marks of transactions; return it. Blocks.

    Nothing is said where no broker answers by the deadline.
    """
    found = lose_marks(client_properties, deadline) or False
    if found:
        log.warning("brokers_may_lose_marks", line="4.3", releases=LOSING_MARKS)
    return found
