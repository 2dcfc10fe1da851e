"""Logs that lost their end: asking whether a log still leads to a position that it led to before.

The client asks the leader itself where an epoch ends (KIP-320), and has no call for it: it does so
for the position of an assignment when it learns of the partition's leader. A client that has known
the leader before takes the position as it is. So each question has a client of its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from headrace.clock import SYSTEM_CLOCK
from headrace.errors import KafkaUnavailableError
from headrace.kafka import properties
from headrace.kafka.clients import open_consumer
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from confluent_kafka import Consumer, Message

    from headrace.clock import Clock, Deadline

#: What the client takes for no leader epoch.
NO_EPOCH = -1

#: What the client reports where the broker does not have the position.
OUT_OF_RANGE = (
    KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - the client's public name for it
    KafkaError.OFFSET_OUT_OF_RANGE,
)

#: What a leader answers that the client knows as of another election. The administrative client
#: asks on as it did until it looks the topic up again, which it does by itself once in minutes.
STALE_LEADER = (KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH)

#: What the client says of a log that was truncated. It has a code for it, but reports that of a
#: position out of range, and tells the two apart in its text only.
_TRUNCATION = KafkaError(KafkaError._LOG_TRUNCATION).str().removeprefix("Local: ")  # noqa: SLF001 - the client's public name for it

#: Where the log ends that the client knew.
_FORMER_END = re.compile(r"broker end offset is (\d+)")

#: Answers that are heard of at a time.
_MOST_ANSWERS = 1000

#: Seconds that a client has for its questions while others wait: sound leaders have answered then.
TURNOVER = 5.0

#: Seconds without an answer after which that is told, and told again.
DOUBT_INTERVAL = 30.0

#: Seconds of one poll.
_TURN = 0.1


def is_truncation(text: str) -> bool:
    """Whether an error of the client's says that a log was truncated."""
    return _TRUNCATION in text


def former_end(text: str) -> int | None:
    """Return where a truncated log ends, as an error of the client's says; None: it does not."""
    found = _FORMER_END.search(text)
    return None if found is None else int(found[1])


class LogQuestions:
    """Asks whether logs still lead to positions. For one thread.

    Questions that come while others are open wait for those, ``TURNOVER`` at most: another client
    then asks them together. ``lost`` and ``whole`` have what was answered, until it is taken: where
    truncated logs end, None where that is not known, and which are as they were.
    """

    def __init__(
        self, client_properties: Mapping[str, Any], group: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._properties = {
            **properties.source(client_properties, group, 0),
            # the first record says that all is well, and no other is wanted
            "queued.min.messages": 1,
            "fetch.message.max.bytes": 65_536,
        }
        self._consumer: Consumer | None = None
        self._clock = clock
        self._opened_at = self._told_at = clock.monotonic()
        self._waiting: dict[TopicPartition, ClientPartition] = {}
        self._open: dict[TopicPartition, ClientPartition] = {}
        self._asked_at: dict[TopicPartition, float] = {}
        self.lost: dict[TopicPartition, int | None] = {}
        self.whole: set[TopicPartition] = set()

    def ask(self, partition: TopicPartition, position: int, epoch: int) -> None:
        """Ask whether a log still leads to where it led under a leader epoch. Does not block."""
        self.forget([partition])
        self._waiting[partition] = ClientPartition(*partition, position, leader_epoch=epoch)
        self._asked_at[partition] = self._clock.monotonic()

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Ask no more about partitions, and drop what was answered."""
        for partition in partitions:
            self._waiting.pop(partition, None)
            self._asked_at.pop(partition, None)
            self.lost.pop(partition, None)
        self.whole.difference_update(partitions)
        self._close(self._open.keys() & set(partitions))

    def hear(self, timeout: float) -> list[str]:
        """Take what has been answered; return what else went wrong. Blocks for the time-out."""
        self._put_what_waits()
        if self._consumer is None:
            return []
        errors = [
            error
            for message in self._consumer.consume(_MOST_ANSWERS if timeout == 0 else 1, timeout)
            if (error := self._take(message)) is not None
        ]
        self._close(self._open.keys() & (self.lost.keys() | self.whole))
        return errors + self._late()

    def _put_what_waits(self) -> None:
        """Ask what waits, unless a client is at it that may still be answered."""
        now = self._clock.monotonic()
        if not self._waiting or (self._consumer is not None and now < self._opened_at + TURNOVER):
            return
        if self._consumer is not None:
            self._consumer.close()
        self._open |= self._waiting
        self._waiting.clear()
        self._opened_at = now
        self._consumer = open_consumer(self._properties)
        self._consumer.incremental_assign(list(self._open.values()))

    def _late(self) -> list[str]:
        """Return what to say of logs that have been in doubt for long, once in a while."""
        now = self._clock.monotonic()
        unanswered = [*self._open, *self._waiting]
        late = [p for p in unanswered if now >= self._asked_at[p] + DOUBT_INTERVAL]
        if not late or now < self._told_at + DOUBT_INTERVAL:
            return []
        self._told_at = now
        more = f" and {len(late) - 1} more" if len(late) > 1 else ""
        told = (
            f"{late[0]}{more}: for {DOUBT_INTERVAL:.0f} s or longer no leader has said whether the "
            "log still leads to where it was read, and nothing is read on; look at the brokers"
        )
        return [told]

    def _take(self, message: Message) -> str | None:
        partition = TopicPartition(str(message.topic()), message.partition() or 0)
        error = message.error()
        if partition not in self._open or partition in self.lost:
            return None
        if error is not None and is_truncation(error.str()):
            self.lost[partition] = former_end(error.str())
        elif error is None or error.code() in {KafkaError._PARTITION_EOF, *OUT_OF_RANGE}:  # noqa: SLF001 - the client's public name for it
            # whether it is in range is compared with the ends
            self.whole.add(partition)
        else:
            return f"{partition}: {error.str()}"
        return None

    def _close(self, answered: Collection[TopicPartition]) -> None:
        for partition in answered:
            del self._open[partition]
        if self._consumer is None:
            return
        if self._open:
            if answered:
                self._consumer.incremental_unassign([ClientPartition(*each) for each in answered])
            return
        self._consumer.close()
        self._consumer = None

    def close(self) -> None:
        """Release the client."""
        self.forget([*self._open, *self._waiting])


def truncated_at(
    client_properties: Mapping[str, Any],
    group: str,
    where: tuple[TopicPartition, int, int],
    deadline: Deadline,
) -> tuple[bool, int | None]:
    """Return whether a log does not lead to a position any more, and where it ends if known.

    ``where`` is the partition, the position, and a leader epoch under which the log led there.
    Blocks.

    Raises:
        KafkaUnavailableError: no answer by the deadline.
    """
    partition, position, epoch = where
    questions = LogQuestions(client_properties, group)
    questions.ask(partition, position, epoch)
    try:
        while not deadline.expired:
            questions.hear(deadline.at_most(_TURN))
            if partition in questions.lost:
                return True, questions.lost[partition]
            if partition in questions.whole:
                return False, None
    finally:
        questions.close()
    raise KafkaUnavailableError(
        f"the leader of {partition} did not say whether its log still leads to {position}"
    )
