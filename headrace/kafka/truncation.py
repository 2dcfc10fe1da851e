"""Logs that lost their end: asking whether a log still leads to a position that it led to before.

The client asks the leader itself where an epoch ends (KIP-320), and has no call for it: it does so
for the position of an assignment when it learns of the partition's leader. A client that has known
the leader before takes the position as it is. So each question has a client of its own.
"""

from __future__ import annotations

import re
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]  # not in __all__, but in the client's documentation

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.records import TopicPartition
from headrace.kafka import clients
from headrace.kafka.clients import open_consumer
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.ports import LogLook

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

    from headrace.core.clock import Clock
    from headrace.kafka.ports import Fetched

#: The end of a log, without a type in the client.
LATEST: Any = _OffsetSpec.latest()  # type: ignore[no-untyped-call]

#: Seconds that a leader has to say which one it is.
LEADER_TIMEOUT = 5.0

#: Seconds that a look at a log may take in all, with the turns of those that wait.
LOOK_TIMEOUT = 20.0

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
_POLL_INTERVAL = 0.1


def is_truncation(text: str) -> bool:
    """Return whether an error of the client's says that a log was truncated."""
    return _TRUNCATION in text


def former_end(text: str) -> int | None:
    """Return where a truncated log ends, as an error of the client's says; None: it does not."""
    found = _FORMER_END.search(text)
    return None if found is None else int(found[1])


def first_of(partitions: Collection[TopicPartition]) -> str:
    """Return the first of partitions, and how many others there are."""
    more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
    return f"{next(iter(partitions), None)}{more}"


def note(fetched: Fetched, partition: TopicPartition, offset: int, code: int, text: str) -> None:
    """Record what a client reports in place of a record; a partition may be none at all."""
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        fetched.denied.append(partition.topic)
    if partition.partition < 0 or not partition.topic:
        fetched.errors.append(text)
    elif code == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
        fetched.ends.append((partition, offset))
    elif is_truncation(text):
        fetched.truncated.append((partition, former_end(text)))
    elif code in OUT_OF_RANGE:
        fetched.out_of_range.append(partition)
    else:
        fetched.errors.append(f"{partition}: {text}")


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
            **clients.source(client_properties, group, 0),
            # the first record says that all is well, and no other is wanted
            "queued.min.messages": 1,
            "fetch.message.max.bytes": 65_536,
        }
        self._consumer: Consumer | None = None
        self._clock = clock
        self._opened_at = self._reported_at = clock.monotonic()
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
        self._close_answered(self._open.keys() & set(partitions))

    def poll(self, timeout: float) -> list[str]:
        """Process answers that have arrived; return other errors. Blocks for the time-out."""
        self._put_what_waits()
        if self._consumer is None:
            return []
        errors = [
            error
            for message in self._consumer.consume(_MOST_ANSWERS if timeout == 0 else 1, timeout)
            if (error := self._take_message(message)) is not None
        ]
        self._close_answered(self._open.keys() & (self.lost.keys() | self.whole))
        return errors + self._late_messages()

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

    def _late_messages(self) -> list[str]:
        """Return what to say of logs that have been in doubt for long, once in a while."""
        now = self._clock.monotonic()
        unanswered = [*self._open, *self._waiting]
        late = [p for p in unanswered if now >= self._asked_at[p] + DOUBT_INTERVAL]
        if not late or now < self._reported_at + DOUBT_INTERVAL:
            return []
        self._reported_at = now
        report = (
            f"{first_of(late)}: for {DOUBT_INTERVAL:.0f} s or longer no leader has said whether "
            "the log still leads to where it was read, and nothing is read on; look at the brokers"
        )
        return [report]

    def _take_message(self, message: Message) -> str | None:
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

    def _close_answered(self, answered: Collection[TopicPartition]) -> None:
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
            questions.poll(deadline.at_most(_POLL_INTERVAL))
            if partition in questions.lost:
                return True, questions.lost[partition]
            if partition in questions.whole:
                return False, None
    finally:
        questions.close()
    raise KafkaUnavailableError(
        f"the leader of {partition} did not say whether its log still leads to {position}"
    )


@dataclass(slots=True)
class _Doubt:
    """A look that is not over. ``led`` is the leader's epoch, None until it has said it."""

    partition: TopicPartition
    position: int
    epoch: int
    deadline: Deadline
    answer: Future[LogLook]
    led: int | None = None


class LogLooks:
    """Looks at logs, for any thread and for none that waits.

    Each leader is asked by itself, as an answer for many comes when all of them have answered. The
    logs that have another leader than before are asked about together, on a thread that exists
    while some are.
    """

    def __init__(
        self,
        client_properties: Mapping[str, Any],
        group: str,
        admin: AdminClient,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._questions = LogQuestions(client_properties, group, clock)
        self._admin = admin
        self._clock = clock
        self._lock = Lock()
        self._thread: Thread | None = None
        self._looks: dict[TopicPartition, _Doubt] = {}
        self._doubts: list[_Doubt] = []
        self._closing = Event()

    def ask(self, partition: TopicPartition, position: int, epoch: int) -> Future[LogLook]:
        """Ask whether a log leads to where it led under a leader epoch. Does not block."""
        deadline = Deadline.after(LOOK_TIMEOUT, self._clock)
        look = _Doubt(partition, position, epoch, deadline, Future())
        with self._lock:
            before = self._looks.get(partition)
            self._looks[partition] = look
        if before is not None:
            before.answer.cancel()
        self._ask_leader(look)
        return look.answer

    def _ask_leader(self, look: _Doubt) -> None:
        wanted = ClientPartition(*look.partition)
        try:
            asked = self._admin.list_offsets({wanted: LATEST}, request_timeout=LEADER_TIMEOUT)
        except KafkaException as error:
            self._fail(look, error.args[0].str())
            return
        asked[wanted].add_done_callback(partial(self._take_leader, look))

    def _take_leader(self, look: _Doubt, answer: Future[Any]) -> None:
        """Process the leader's answer, on the client's thread."""
        problem = answer.exception()
        if problem is None:
            epoch = answer.result().leader_epoch
            look.led = None if epoch is None or epoch < 0 else epoch
            if look.led in {None, look.epoch}:
                self._settle_look(look, LogLook(look.led))
                return
        elif (
            look.deadline.expired
            or not isinstance(problem, KafkaException)
            or problem.args[0].code() not in STALE_LEADER
        ):
            reason = problem.args[0] if isinstance(problem, KafkaException) else problem
            self._fail(look, reason.str() if isinstance(reason, KafkaError) else str(reason))
            return
        # a broker that has just begun may not know yet what it leads
        self._queue_doubt(look)

    def _queue_doubt(self, look: _Doubt) -> None:
        with self._lock:
            self._doubts.append(look)
            if self._thread is None and not self._closing.is_set():
                self._thread = Thread(target=self._run, name="log-looks", daemon=True)
                self._thread.start()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        open_looks: dict[TopicPartition, _Doubt] = {}
        try:
            while self._take_doubts(open_looks):
                self._questions.poll(0)
                self._answer_looks(open_looks)
                self._closing.wait(_POLL_INTERVAL)
        except Exception as error:  # noqa: BLE001 - who asked hears of it, and asks again
            with self._lock:
                self._thread = None
                failed = [*open_looks.values(), *self._doubts]
                self._doubts.clear()
            for look in failed:
                self._fail(look, f"{type(error).__name__}: {error}")
            self._questions.close()

    def _take_doubts(self, open_looks: dict[TopicPartition, _Doubt]) -> bool:
        """Put new questions; False where there are none any more, and the thread has to end."""
        with self._lock:
            doubts, self._doubts = self._doubts, []
            if self._closing.is_set() or not (doubts or open_looks):
                self._thread = None
                self._doubts = doubts
                return False
        stale = [look for look in doubts if look.led is None]
        for topic in {look.partition.topic for look in stale}:
            with suppress(KafkaException):
                self._admin.list_topics(topic, timeout=LEADER_TIMEOUT)
        for look in stale:
            self._ask_leader(look)
        for look in doubts:
            if look.led is not None:
                open_looks[look.partition] = look
                self._questions.ask(look.partition, look.position, look.epoch)
        return True

    def _answer_looks(self, open_looks: dict[TopicPartition, _Doubt]) -> None:
        questions, over = self._questions, []
        for partition, look in open_looks.items():
            if partition in questions.whole:
                self._settle_look(look, LogLook(look.led))
            elif partition in questions.lost:
                self._settle_look(look, LogLook(look.led, True, questions.lost[partition]))
            elif look.deadline.expired:
                self._fail(look, "its leader did not say")
            elif not look.answer.done():
                continue
            over.append(partition)
        questions.forget(over)
        for partition in over:
            del open_looks[partition]

    # --- answers --------------------------------------------------------------------------------

    def _settle_look(self, look: _Doubt, found: LogLook) -> None:
        if self._remove_look(look):
            look.answer.set_result(found)

    def _fail(self, look: _Doubt, reason: str) -> None:
        if self._remove_look(look):
            look.answer.set_exception(
                KafkaUnavailableError(
                    f"whether the log of {look.partition} still leads to {look.position} is not "
                    f"known: {reason}"
                )
            )

    def _remove_look(self, look: _Doubt) -> bool:
        """Return whether the answer is still awaited."""
        with self._lock:
            if self._looks.get(look.partition) is look:
                del self._looks[look.partition]
        return not look.answer.done() and look.answer.set_running_or_notify_cancel()

    def close(self) -> None:
        """End the thread; what is not answered fails."""
        self._closing.set()
        with self._lock:
            thread, left = self._thread, list(self._looks.values())
        if thread is not None:
            thread.join(LEADER_TIMEOUT)
        for look in left:
            look.answer.cancel()
        self._questions.close()
        # it has no other end than its last reference's
        del self._admin
