"""Batches that fail at every attempt: bounded runs end, and code that never worked is named."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from headrace.channel.bounds import Until
from headrace.channel.lasting_failures import (
    BOUNDED_ATTEMPTS,
    BOUNDED_ATTEMPTS_AWAY,
    BOUNDED_REST,
    FIRST_FAILURES,
    LastingFailures,
    is_of_code,
)
from headrace.channel.pauses import Pause, PauseMode, PauseReason
from headrace.config import ChannelConfig
from headrace.core.clock import Deadline
from headrace.core.errors import (
    BatchTimeoutError,
    ChannelFailedError,
    ConfigError,
    InvalidResponseError,
    JobFailedError,
    JobTimeoutError,
    PoisonRecordError,
    ReducerError,
    ResultMisfitError,
    RetryableError,
    SinkConflictError,
)
from headrace.devstack.wait import wait_for
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, InMemoryDeadLetters, in_memory_channel, running
from headrace.testing.channel import QUICK
from tests.unit.channel.in_memory import P0, P1, committed, values
from tests.unit.channel.recorder import PATIENCE, Recorder
from tests.unit.channel.test_reconfigure import change

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.records import Batch, TopicPartition

LATEST = Until()


class Ended:
    """Waits until a channel fails."""

    def __init__(self) -> None:
        self._event = Event()

    def note(self, _channel: InboundKafkaChannel, _error: BaseException) -> None:
        """Take it that the channel failed: for use as ``on_failure``."""
        self._event.set()

    def wait(self, channel: InboundKafkaChannel) -> BaseException:
        """Return why the channel failed."""
        assert self._event.wait(PATIENCE), "the channel goes on"
        assert channel.failure is not None
        return channel.failure


def raising(error: BaseException) -> Recorder:
    """Return a processor that fails with each batch of partition 0."""

    def answer(batch: Batch) -> BatchResponse:
        if batch.partition == P0:
            raise error
        return BatchResponse.advance()

    return Recorder(answer)


def quick(retry: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return quick settings of how errors are dealt with."""
    return {"retry": {**QUICK["retry"], **(retry or {})}, **fields}


@pytest.mark.parametrize(
    ("error", "settings", "attempts"),
    [
        (ValueError("no"), {}, BOUNDED_ATTEMPTS),
        (TypeError("no"), {}, BOUNDED_ATTEMPTS),
        (PoisonRecordError(P0, 3, "no"), {}, BOUNDED_ATTEMPTS),
        (ImportError("no"), {}, BOUNDED_ATTEMPTS),
        (ResultMisfitError("no"), {"retry": {"attempts": 3}, "rejects": {"failing": "skip"}}, 3),
        (ImportError("no"), {"retry": {"attempts": 3}, "rejects": {"failing": "skip"}}, 3),
        (RetryableError("no"), {}, BOUNDED_ATTEMPTS_AWAY),
        (
            ConnectionError("no"),
            {"retry": {"attempts": 3}, "rejects": {"failing": "skip"}},
            BOUNDED_ATTEMPTS_AWAY,
        ),
        (ConnectionError("no"), {"retry": {"attempts": 15}, "rejects": {"failing": "skip"}}, 15),
        (SinkConflictError(P0, 3, 0), {}, BOUNDED_ATTEMPTS_AWAY),
    ],
)
def test_a_bounded_run_ends_with_a_repeated_failure(
    broker: InMemoryBroker, error: BaseException, settings: dict[str, Any], attempts: int
) -> None:
    """The channel's error names the partition, the offset and the cause."""
    broker.produce(P0, *values(5))
    recorder, ended = raising(error), Ended()
    channel = in_memory_channel(
        recorder, broker, until=LATEST, on_failure=ended.note, **quick(**settings)
    )
    with running(channel):
        failure = ended.wait(channel)
    assert isinstance(failure, ChannelFailedError)
    said = f"{P0}: the batch at offset 0 failed {attempts} times, the last with"
    assert f"{said} {type(error).__name__}: {error}" in str(failure)
    assert len(recorder.delivered(0)) == attempts


def test_a_bounded_run_follows_the_policy_for_failures(
    broker: InMemoryBroker,
) -> None:
    """A batch that is skipped after its attempts ends no run."""
    broker.produce(P0, *values(5))
    recorder = raising(ValueError("no"))
    channel = in_memory_channel(
        recorder, broker, until=LATEST, **quick({"attempts": 2}, rejects={"failing": "skip"})
    )
    with running(channel):
        assert committed(broker, P0, 5)
        assert channel.failure is None
    assert len(recorder.delivered(0)) == 2


def test_a_run_without_bounds_goes_on(broker: InMemoryBroker) -> None:
    """A daemon tries for ever where failing is fail."""
    broker.produce(P0, *values(5))
    recorder = raising(ValueError("no"))
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        recorder.wait(lambda: len(recorder.delivered(0)) > BOUNDED_ATTEMPTS_AWAY)
        assert channel.failure is None


@pytest.mark.parametrize("failing", ["fail", "skip", "dead_letter"])
@pytest.mark.parametrize(
    "error",
    [ResultMisfitError("column 'id' is text"), ImportError("no module x"), ConfigError(["no"])],
    ids=lambda each: type(each).__name__,
)
def test_partition_rests_after_attempts_that_cannot_succeed(
    broker: InMemoryBroker, error: BaseException, failing: str
) -> None:
    """Other partitions go on; the batch is tried once more each time an operator ends the rest."""
    broker.produce(P0, *values(5))
    broker.produce(P1, *values(5))
    recorder = raising(error)
    retry, rejects = {}, {"failing": failing}
    if failing != "fail":
        retry["attempts"] = 3
    if failing == "dead_letter":
        rejects["topic"] = "dead"
        broker.create_topic("dead")
    attempts = retry.get("attempts", BOUNDED_ATTEMPTS)
    channel = in_memory_channel(
        recorder,
        broker,
        dead_letters=InMemoryDeadLetters(),
        pause={"max_duration": "10ms"},
        **quick(retry, rejects=rejects),
    )
    with capture_logs() as logs, running(channel):
        pause = resting(channel)
        assert (pause.partition, pause.by, pause.until) == (P0, "headrace", None)
        assert str(error) in pause.note
        assert committed(broker, P1, 5)
        assert len(recorder.delivered(0)) == attempts
        ended = channel.resume(PauseReason.MISFIT, by="ann")
        assert ended == pause
        recorder.wait(lambda: len(recorder.delivered(0)) > attempts)
        assert resting(channel) != pause
        assert len(recorder.delivered(0)) == attempts + 1
        assert channel.failure is None
    told = [line for line in logs if line["event"] == "partition_rests"]
    assert [line["attempts"] for line in told] == [attempts, attempts + 1]
    assert str(error) in told[0]["reason"]


def resting(channel: InboundKafkaChannel) -> Pause:
    """Return the pause that a channel's partition rests for."""
    assert wait_for(lambda: channel.pauses, Deadline.after(PATIENCE)), "it goes on"
    (pause,) = channel.pauses
    assert pause.reason is PauseReason.MISFIT
    return pause


@pytest.mark.parametrize("error", [RetryableError("away"), ValueError("no"), MemoryError()])
def test_failure_that_may_pass_is_retried_without_end(
    broker: InMemoryBroker, error: BaseException
) -> None:
    """No operator has to act: the batch succeeds once the server is back, or the code is right."""
    broker.produce(P0, *values(5))
    recorder = raising(error)
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        recorder.wait(lambda: len(recorder.delivered(0)) > BOUNDED_ATTEMPTS)
        assert channel.pauses == ()


def test_a_rest_for_a_misfit_ends_with_new_settings(broker: InMemoryBroker) -> None:
    """They may be what was wrong."""
    broker.produce(P0, *values(5))
    recorder = raising(ResultMisfitError("no"))
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        resting(channel)
        tried = len(recorder.delivered(0))
        assert change(channel, workers=3)
        recorder.wait(lambda: len(recorder.delivered(0)) > tried)


def test_a_rest_for_a_misfit_ends_with_the_claim(broker: InMemoryBroker) -> None:
    """The partition's next owner finds by itself whether it fits there."""
    broker.produce(P0, *values(5))
    channel = in_memory_channel(raising(ResultMisfitError("no")), broker)
    with running(channel):
        pause = resting(channel)
        channel.pause(by="ann", partition=P0, mode=PauseMode.DRAIN)
        assert wait_for(lambda: pause not in channel.pauses, Deadline.after(PATIENCE))


@pytest.mark.parametrize("kind", [JobTimeoutError, partial(BatchTimeoutError, P0)])
@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_record_that_code_hangs_at_is_found_and_not_given_up(
    broker: InMemoryBroker, kind: Callable[[str], BaseException], at: int
) -> None:
    """The batch is divided; records before the hanging one are committed, and it comes alone."""
    broker.produce(P0, *values(8))

    def answer(batch: Batch) -> BatchResponse:
        if batch.start <= at < batch.next_offset:
            raise kind("the code did not return")
        return BatchResponse.advance()

    recorder, letters = Recorder(answer), InMemoryDeadLetters()
    broker.create_topic("dead")
    settings = quick({"attempts": 2}, rejects={"failing": "dead_letter", "topic": "dead"})
    channel = in_memory_channel(recorder, broker, dead_letters=letters, **settings)
    with running(channel):
        recorder.wait(lambda: [each[:2] for each in recorder.delivered(0)].count((at, at + 1)) > 3)
        assert at == 0 or committed(broker, P0, at)
    assert letters.letters == []


def test_a_bounded_run_ends_where_a_start_position_stays_unknown(broker: InMemoryBroker) -> None:
    """A sink that never says where it stands holds up no run for ever."""
    broker.produce(P0, *values(5))

    class Silent(Recorder):
        def stored_offset(self, assignment: Any) -> int | None:
            raise RuntimeError(f"no table of {assignment.partition}")

    ended = Ended()
    channel = in_memory_channel(Silent(), broker, until=LATEST, on_failure=ended.note)
    with running(channel):
        failure = ended.wait(channel)
    assert isinstance(failure, ChannelFailedError)
    assert "RuntimeError: no table of events-" in str(failure)


@pytest.mark.parametrize(
    ("error", "is_named"),
    [
        (TypeError("the reducer returned a list"), True),
        (AttributeError("'NoneType' object has no attribute 'lower'"), True),
        (InvalidResponseError(P0, "on_next_batch returned None"), True),
        (ImportError("no module named x"), True),
        (ResultMisfitError("t: columns 'id' and 'ID'"), True),
        (ValueError("not a number"), False),
        (ConnectionError("refused"), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_code_that_never_worked_is_named_once(
    broker: InMemoryBroker, error: BaseException, is_named: bool
) -> None:
    """After the first failures there is one line, which has the code and the error."""
    broker.produce(P0, *values(5))
    recorder = raising(error)
    with capture_logs() as logs, running(in_memory_channel(recorder, broker)):
        recorder.wait(lambda: len(recorder.delivered(0)) >= BOUNDED_ATTEMPTS)
    told = [line for line in logs if line["event"] == "processor_never_worked"]
    assert len(told) == is_named
    for line in told:
        assert (line["log_level"], line["code"]) == ("error", "memory:processor")
        assert str(error) in line["error"]


def test_code_that_worked_once_is_not_named(broker: InMemoryBroker) -> None:
    """A failure after a success may be due to the value."""
    broker.produce(P0, *values(20))

    def answer(batch: Batch) -> BatchResponse:
        if batch.start:
            raise TypeError("no")
        return BatchResponse.advance()

    recorder = Recorder(answer)
    with capture_logs() as logs, running(in_memory_channel(recorder, broker)):
        recorder.wait(lambda: len(recorder.delivered(0)) > BOUNDED_ATTEMPTS)
    assert "processor_never_worked" not in [line["event"] for line in logs]


def test_failures_by_a_future_count_as_well(broker: InMemoryBroker) -> None:
    """Micro-batches are answered by futures."""
    broker.produce(P0, *values(5))

    def answer(_: Batch) -> Future[BatchResponse]:
        future: Future[BatchResponse] = Future()
        future.set_exception(ReducerError("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `amout`"))
        return future

    recorder, ended = Recorder(answer), Ended()
    channel = in_memory_channel(recorder, broker, until=LATEST, on_failure=ended.note)
    with capture_logs() as logs, running(channel):
        assert isinstance(ended.wait(channel), ChannelFailedError)
    assert [line["event"] for line in logs].count("processor_never_worked") == 1


def test_an_error_of_code_is_found_among_causes() -> None:
    """A keyed reducer's error is the cause of one that names the record."""
    named = PoisonRecordError(P0, 3, "key 'a': no")
    assert not is_of_code(named)
    named.__cause__ = TypeError("no")
    assert is_of_code(named)
    assert is_of_code(KeyError('Field "nope" does not exist in schema'))
    assert not is_of_code(JobFailedError("java.io.IOException: disk"))


@pytest.mark.parametrize("partition", [None, P0])
def test_a_bounded_run_ends_when_its_state_rests(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch, partition: TopicPartition | None
) -> None:
    """The channel's error names the state and why it rests."""
    monkeypatch.setattr("headrace.channel.lasting_failures.BOUNDED_REST", 0.0)
    broker.produce(P0, *values(5))
    ended = Ended()
    channel = in_memory_channel(Recorder(), broker, until=LATEST, on_failure=ended.note)
    with running(channel):
        channel.pause(PauseReason.STATE, by="processor", partition=partition, note="it was cut")
        error = ended.wait(channel)
    assert isinstance(error, ChannelFailedError)
    assert "rests: it was cut" in str(error)
    assert partition is None or str(partition) in str(error)


@pytest.mark.parametrize(
    ("is_bounded", "reason", "seconds", "looks_again"),
    [
        (True, PauseReason.STATE, BOUNDED_REST - 1, 1000.0 + BOUNDED_REST),
        (True, PauseReason.OPERATOR, BOUNDED_REST + 1, None),
        (False, PauseReason.STATE, BOUNDED_REST + 1, None),
    ],
)
def test_lasting_failures_fail_no_channel_for_a_rest_that_may_end(
    is_bounded: bool, reason: PauseReason, seconds: float, looks_again: float | None
) -> None:
    """A short rest, an operator's pause and a run without bounds end nothing."""
    environment = MagicMock()
    lasting = LastingFailures(environment, is_bounded=is_bounded)
    pause = Pause(reason, "processor", since=1000.0, note="it was cut")
    assert lasting.look_at_rests([pause], 1000.0 + seconds) == looks_again
    environment.fail.assert_not_called()


@pytest.mark.parametrize(
    ("processor", "sink", "code"),
    [
        ({"type": "arrow", "reducer": "m:reduce"}, "noop", "m:reduce"),
        ({"type": "spark", "reducer": "m:reduce"}, "noop", "m:reduce"),
        ({"type": "spark", "sql": "select * from batch"}, "noop", "spark"),
        ({"type": "simple"}, "m:function", "m:function"),
        ({"type": "custom", "factory": "m:Processor"}, None, "m:Processor"),
    ],
    ids=str,
)
def test_the_line_names_the_code_of_any_type(
    processor: dict[str, str], sink: str | None, code: str
) -> None:
    """A reducer, a function and a class are named by their paths; a query has none."""
    environment = MagicMock()
    environment.config = ChannelConfig.model_validate(
        {"topics": ["t"], "group": "g", "processor": processor, "sink": sink}
    )
    lasting = LastingFailures(environment, is_bounded=False)
    with capture_logs() as logs:
        for _ in range(FIRST_FAILURES):
            lasting.note_failure(TypeError("no"))
    assert [line["code"] for line in logs] == [code]
