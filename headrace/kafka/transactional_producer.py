"""The transactional producer of one member epoch: it commits offsets with what it produces."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.core.records import TopicPartition
from headrace.kafka import clients
from headrace.kafka.ports import CommitFailure, CommitRefusal
from headrace.kafka.transaction_log import TRANSACTION_LOG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.core.clock import Clock
    from headrace.kafka.columnar.producer import ColumnProducer


log = structlog.get_logger(__name__)

#: Milliseconds after which the brokers abort a transaction whose producer is silent. Offsets in an
#: open transaction cannot be read; a new owner does not wait for this, it fences the producer.
TRANSACTION_TIMEOUT_MS = 15_000

#: Milliseconds that a request may stay unanswered. The client's call that adds offsets to a
#: transaction waits for this, whatever time-out it is given: 15 s with the client's own choice.
SOCKET_TIMEOUT_MS = 5_000

#: Seconds after which a call of the client counts as hung, provided that the brokers answer: what
#: a transaction left open is aborted by them before that.
STUCK_AFTER = 2 * TRANSACTION_TIMEOUT_MS / 1000

#: Seconds in which an earlier commit has to be decided; then it is asked for again.
SETTLE_TIMEOUT = 5.0

#: Seconds that brokers which answer take for it; the next commit would find the producer busy.
_MOMENT = 0.2

#: Seconds of one call that initializes a producer. The client says only at its end what the brokers
#: answered, and asks again by itself half a second after an answer that puts it off.
_INIT_STEP = 0.05

#: Clients that are opened because the brokers put one off. An abort takes milliseconds; where one
#: cannot end, each would be a connection and a login more for brokers that are in trouble.
_MOST_OPENED = 10


class _Phase(Enum):
    """The phase of the producer's transaction, which decides what follows after a time-out."""

    NEW = "new"
    """``init_transactions`` has not succeeded yet."""
    READY = "ready"
    """No transaction is open."""
    OPEN = "open"
    """Its offsets are not all sent: it can only be aborted."""
    COMMITTING = "committing"
    """Its end was asked for: only asking again tells whether it took place."""


class TransactionalProducer:
    """The producer of one membership. Used by one thread at a time; ``undecided`` by any.

    Its calls run on a thread of their own, one commit at a time: the client does not heed every
    time-out, and after some outages a call never comes back.

    ``undecided`` are the partitions whose offsets may be stored yet, or not: the last transaction
    that has them is still under way, or its end has no answer. ``has_aborted``: a transaction was
    aborted since that was set to false. ``quiet``: it need not be served.
    ``columns`` produces columns by it; None where it was not to, or where they cannot be.
    """

    def __init__(
        self,
        client_properties: Mapping[str, Any],
        transactional_id: str,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        quiet: bool = False,
        columns: type[ColumnProducer] | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.undecided: frozenset[TopicPartition] = frozenset()
        self.has_aborted = False
        self._phase = _Phase.NEW
        self._call: Thread | None = None
        self._called_at = 0.0
        self._outcome: CommitFailure | None = None
        self._options = {
            "socket.timeout.ms": SOCKET_TIMEOUT_MS,
            **({} if columns is None else columns.plugin(client_properties)),
            **(clients.silent if quiet else clients.base)(client_properties),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
        }
        self._producer = self._open()
        self.columns = None if columns is None else columns.of_the_newest()

    def _open(self) -> Producer:
        return Producer(clients.producer(self._options))

    def commit(
        self,
        entries: list[ClientPartition],
        group: object,
        deadline: Deadline,
        produce: Callable[[Producer, Deadline], None] | None = None,
    ) -> CommitFailure | None:
        """Store offsets, after what an earlier call left undecided; None if they are stored.

        ``produce`` hands the client what else the transaction is to have. Whatever it raises of
        ours or the client's is the failure.
        """
        transact = partial(self._transact, entries, group, deadline, produce)
        return self._finish(transact, deadline, entries)

    def conclude(self, deadline: Deadline) -> CommitFailure | None:
        """Prepare for a transaction: initialize the producer, or decide what is undecided. Blocks.

        None: nothing of this producer's is under way any more.
        """
        if self._phase is _Phase.READY and self.busy_for(deadline.clock) == 0:
            return None
        return self._finish(partial(self._settle_transaction, deadline), deadline)

    def abort(
        self,
        entries: list[ClientPartition],
        group: object,
        deadline: Deadline,
        produce: Callable[[Producer, Deadline], None] | None = None,
    ) -> CommitFailure | None:
        """Abort a transaction that has offsets, which ends all that this id left in the group.

        None: it is aborted. Where the brokers refused the offsets for good, that is logged.
        ``produce`` as for :meth:`commit`: what the id left in those partitions is ended as well.
        """
        return self._finish(partial(self._retract, entries, group, deadline, produce), deadline)

    def _finish(
        self, work: Callable[[], None], deadline: Deadline, entries: Iterable[ClientPartition] = ()
    ) -> CommitFailure | None:
        if self.busy_for(deadline.clock) > 0:
            return CommitFailure("the producer is still busy with an earlier commit")
        self.undecided |= _partitions(entries)
        call = self._start_call(work, deadline.clock)
        call.join(deadline.remaining)
        if call.is_alive():
            return CommitFailure("no answer to the transaction in time")
        return self._outcome

    def settle(self, clock: Clock) -> None:
        """Find out what became of an earlier commit, if no call does; waits only a moment."""
        if self.undecided and self.busy_for(clock) == 0:
            settling = partial(self._settle_transaction, Deadline.after(SETTLE_TIMEOUT, clock))
            self._start_call(settling, clock).join(_MOMENT)

    def _start_call(self, work: Callable[[], None], clock: Clock) -> Thread:
        self._called_at = clock.monotonic()
        self._call = Thread(target=self._run, args=[work], name="kafka-commit", daemon=True)
        self._call.start()
        return self._call

    def busy_for(self, clock: Clock) -> float:
        """Return the seconds for which a call has not come back, 0.0 if there is none."""
        if self._call is None or not self._call.is_alive():
            return 0.0
        return max(clock.monotonic() - self._called_at, 0.001)

    def serve(self) -> None:
        """Run the client's callbacks."""
        self._producer.poll(0)

    # --- on the thread of a call ------------------------------------------------------------

    def _run(self, work: Callable[[], None]) -> None:
        self._outcome = CommitFailure("the call ended without an outcome")
        try:
            work()
        except KafkaException as error:
            self._outcome = self._failed(error.args[0])
        except HeadraceError as error:
            self._outcome = CommitFailure(str(error))
        else:
            self._outcome = None

    def _transact(
        self,
        entries: list[ClientPartition],
        group: object,
        deadline: Deadline,
        produce: Callable[[Producer, Deadline], None] | None,
    ) -> None:
        self._settle_transaction(deadline)
        self.undecided = _partitions(entries)
        self._producer.begin_transaction()
        self._phase = _Phase.OPEN
        if produce is not None:
            produce(self._producer, deadline)
        if entries:
            self._producer.send_offsets_to_transaction(entries, group, deadline.left)
        self._phase = _Phase.COMMITTING
        self._producer.commit_transaction(deadline.left)
        self._phase = _Phase.READY
        self.undecided = frozenset()

    def _retract(
        self,
        entries: list[ClientPartition],
        group: object,
        deadline: Deadline,
        produce: Callable[[Producer, Deadline], None] | None,
    ) -> None:
        self._settle_transaction(deadline)
        self._producer.begin_transaction()
        self._phase = _Phase.OPEN
        if produce is not None:
            produce(self._producer, deadline)
        if not entries:
            self._settle_transaction(deadline)
            return
        try:
            # the other half is for the abort: the client tries as long as it is let
            self._producer.send_offsets_to_transaction(entries, group, deadline.left / 2)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            log.warning(
                "pending_offsets_not_cleared",
                transactional_id=self.transactional_id,
                error=error.args[0].str(),
            )
        self._settle_transaction(deadline)

    def _initialize(self, deadline: Deadline) -> None:
        """Start under the id, which ends a transaction that a former producer has open.

        Brokers put a producer off that comes upon one, and have aborted it some milliseconds later.
        Another client is not put off then, while this one would wait for half a second; it asks
        nothing any more once it is released.
        """
        self._connect(deadline)
        opened = 0
        while True:
            try:
                self._producer.init_transactions(max(0.001, deadline.at_most(_INIT_STEP)))
            except KafkaException as error:
                if deadline.expired or not error.args[0].retriable():
                    raise
                was_put_off = error.args[0].code() == KafkaError.CONCURRENT_TRANSACTIONS
                # columns are produced by the very client that they were opened with
                if was_put_off and self.columns is None and opened < _MOST_OPENED:
                    opened += 1
                    self._producer = self._open()
                    self._connect(deadline)
            else:
                return

    def _connect(self, deadline: Deadline) -> None:
        """Wait until a broker is connected: without one the client looks again after 0.5 s only."""
        with suppress(KafkaException):
            # any topic would do that asking does not create; without an answer the next call fails
            self._producer.list_topics(TRANSACTION_LOG, timeout=deadline.left)

    def _settle_transaction(self, deadline: Deadline) -> None:
        match self._phase:
            case _Phase.NEW:
                self._initialize(deadline)
            case _Phase.OPEN:
                self._producer.abort_transaction(deadline.left)
                self.has_aborted = True
            case _Phase.COMMITTING:
                self._producer.commit_transaction(deadline.left)
        self._phase = _Phase.READY
        self.undecided = frozenset()

    def _failed(self, error: KafkaError) -> CommitFailure:
        """Return what an error means, and be ready for what is to follow."""
        if error.fatal() or error.code() in _FENCED:
            reason = f"the brokers shut out our transactional producer: {error.str()}"
            return CommitFailure(reason, CommitRefusal.MEMBERSHIP)
        if error.txn_requires_abort():
            self._phase = _Phase.OPEN
        if self._phase in {_Phase.NEW, _Phase.READY}:
            self.undecided = frozenset()
        missing = error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        return CommitFailure(error.str(), topic_missing=missing)


#: What the brokers say to a producer whose id was begun again, or which they ended themselves.
#: ``_STATE``: the client has lost track of its transaction; another producer has to go on.
_FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - public names of the client's
        KafkaError._STATE,  # noqa: SLF001 - public names of the client's
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.PRODUCER_FENCED,
    }
)


def _partitions(entries: Iterable[ClientPartition]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(entry.topic, entry.partition) for entry in entries)
