"""Handing a result's records to a client, and waiting until the brokers have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from headrace.errors import HeadraceError, ResultRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from confluent_kafka import Producer

    from headrace.clock import Deadline
    from headrace.records import ResultRecord

#: Seconds that one look at a full queue waits for room.
_ROOM_TURN = 0.1

#: Records between two looks for errors. Serving the client costs about as much as one record.
_SERVE_EVERY = 100


#: What is said of records that will not be taken another time, either.
_REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - a public name of the client's
    }
)


class NotTakenError(HeadraceError):
    """The brokers did not take the records: not now, not in time, or not from this user."""


class _Errors:
    """The first error among the delivery reports. Called on the thread that serves the client."""

    def __init__(self) -> None:
        self.first: HeadraceError | None = None

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self.first is None:
            refused = error.code() in _REFUSED
            kind = ResultRefusedError if refused else NotTakenError
            self.first = kind(
                f"the brokers did not take a record: topic {message.topic()}: {error.str()}"
            )

    def require_none(self) -> None:
        """Return if there is none."""
        if self.first is not None:
            raise self.first


def produce_all(records: Iterable[ResultRecord], producer: Producer, deadline: Deadline) -> None:
    """Produce records in their order, and return when the brokers have all of them. Blocks.

    Raises:
        ResultRefusedError: a record cannot be produced, now or later.
        NotTakenError: they were not taken by the deadline, or one was not for another reason.
        KafkaException: the client cannot go on.
    """
    errors = _Errors()
    for index, record in enumerate(records, 1):
        _produce(record, producer, errors, deadline)
        if index % _SERVE_EVERY == 0:
            _served(lambda: producer.poll(0))
            errors.require_none()
    left = _served(lambda: producer.flush(max(0.001, deadline.remaining)))
    errors.require_none()
    if left:
        raise NotTakenError(f"{left} records were not taken in time; are the brokers busy?")


def _served(call: Callable[[], int]) -> int:
    """Return what a call that runs callbacks returns.

    A fatal error is raised by the call. Where a delivery report comes in the same call, Python
    finds the error set when the report's callback returns, and makes a SystemError of both; or the
    error is lost, and what is left says nothing. Whoever decides the transaction meets it again.
    """
    try:
        return call()
    except SystemError as error:
        found: BaseException | None = error
        while found is not None and not isinstance(found, KafkaException):
            found = found.__cause__ or found.__context__
        if found is None:
            raise NotTakenError(f"the client gave up without a reason ({error})") from error
        raise found from None


def _produce(record: ResultRecord, producer: Producer, errors: _Errors, deadline: Deadline) -> None:
    more: dict[str, Any] = {}
    if record.partition is not None:
        more["partition"] = record.partition
    if record.timestamp is not None:
        more["timestamp"] = record.timestamp
    if record.headers:
        more["headers"] = record.headers
    while True:
        try:
            producer.produce(record.topic, record.value, record.key, on_delivery=errors, **more)
        except BufferError:
            if deadline.expired:
                raise NotTakenError(
                    f"topic {record.topic}: the brokers take no more records; are they busy?"
                ) from None
            _served(lambda: producer.poll(deadline.at_most(_ROOM_TURN)))
        except KafkaException as error:
            if error.args[0].code() not in _REFUSED:
                raise
            size = len(record.value or b"") + len(record.key or b"")
            raise ResultRefusedError(
                f"topic {record.topic}: a record with {size} bytes of key and value cannot be "
                f"produced: {error.args[0].str()}"
            ) from error
        else:
            return
