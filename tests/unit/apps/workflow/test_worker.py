"""Assignments are called, answered, cancelled and given up."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from headrace.apps.workflow import Assignment, CallFailedError, Workflows
from headrace.apps.workflow.worker import AssignmentProcessor, AtomicProcessExecutor
from headrace.core.clock import Deadline
from headrace.core.errors import ChannelFailedError
from headrace.core.user_text import kind_of
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed.codecs import to_json
from headrace.kafka.errors import ProduceError
from headrace.processors.contract import BatchResponse, ChannelContext
from headrace.telemetry.metrics import Metrics
from headrace.testing.records import FakeAssignment, make_batch
from tests.mute_errors import WAYS, Mute, MuteExit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from headrace.kafka.topic_producer import KeyValue

#: Seconds after which a test gives up.
WAIT = 10.0

#: The attempt's time, in milliseconds, where it does not matter.
LONG = 600_000


@dataclass
class Answers:
    """Takes the place of the producer: keeps answers, or refuses them."""

    sent: list[Any] = field(default_factory=list)
    refused: int = 0

    def send(self, answers: Sequence[KeyValue]) -> None:
        """Keep answers."""
        if self.refused:
            self.refused -= 1
            raise ProduceError("the brokers do not answer")
        self.sent += [(key, json.loads(value)) for key, value in answers]


class Processes:
    """Workflows with processes that a test holds up."""

    def __init__(self) -> None:
        self.flows = Workflows()
        self.begun: list[Assignment] = []
        self.go_on = threading.Event()
        for function in (
            self.double, self.refuse, self.fail, self.hold, self.leave, self.large, self.strange,
        ):  # fmt: skip
            self.flows.processes[function.__name__] = function

    def double(self, call: Assignment, n: int) -> int:
        """Return twice the number."""
        self.begun.append(call)
        return 2 * n

    def refuse(self, call: Assignment) -> None:
        """Fail for good."""
        raise CallFailedError(f"not in attempt {call.attempt}, and never")

    def fail(self, call: Assignment) -> None:
        """Fail in this attempt."""
        raise ValueError(f"attempt {call.attempt}\ud800")

    def hold(self, call: Assignment) -> str:
        """Return when the test says so."""
        self.begun.append(call)
        assert self.go_on.wait(WAIT)
        return "held"

    def leave(self, call: Assignment) -> None:
        """Exit, as a user's code may."""
        raise SystemExit(call.attempt)

    def large(self, call: Assignment) -> str:
        """Return more than a record may have."""
        return "x" * 1_000_000 if call.attempt else ""

    def strange(self, call: Assignment) -> dict[str, Any]:
        """Return what JSON does not know."""
        return {"attempts": {call.attempt}}


class EndlessError(CallFailedError):
    """An exception whose text is none that can be written, and has no end."""

    @override
    def __str__(self) -> str:
        return "\ud800" + "x" * 5_000_000


@contextmanager
def worker(
    processes: Processes,
    answers: Any,
    threads: int = 2,
    failed: list[BaseException] | None = None,
) -> Iterator[AssignmentProcessor]:
    """Run a processor until the block ends; ``failed`` gets what its channel fails with."""
    found = AssignmentProcessor(processes.flows, lambda: answers, threads)
    errors: list[BaseException] = [] if failed is None else failed
    found.open(ChannelContext("assignments", "workers", Metrics(), fail=errors.append))
    try:
        yield found
    finally:
        processes.go_on.set()
        found.close(Deadline.after(WAIT))


def assignment(process: str, ref: str = "0", attempt: int = 1, **members: Any) -> dict[str, Any]:
    """Return an assignment, as the reducer writes it."""
    message = {
        "type": "Assignment",
        "instance": "i",
        "ref": ref,
        "attempt": attempt,
        "proc": process,
        "args": {},
        "issued": int(time.time() * 1000),
        "timeout": LONG,
    }
    return message | members


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", [Mute, MuteExit], ids=["exception", "exit"])
def test_an_error_that_cannot_be_told_kills_no_thread(kind: Any, how: type[BaseException]) -> None:
    """Each call is answered as failed, also after more such errors than threads."""
    processes, answers = Processes(), Answers()

    def mute(_: Assignment) -> None:
        raise kind(how) from ValueError("cause")

    def lies(_: Assignment) -> None:
        raise EndlessError

    processes.flows.processes |= {"mute": mute, "lies": lies}
    with worker(processes, answers, threads=2) as found:
        refs = [str(number) for number in range(6)]
        calls = [assignment("mute" if int(ref) % 2 else "lies", ref) for ref in refs]
        future = deliver(found, *calls, assignment("double", "last", args={"n": 2}))
        assert future.result(WAIT) == BatchResponse.advance()
    said = {value["ref"]: value for _, value in answers.sent}
    assert said["last"]["obj"] == 4
    for ref in refs:
        assert said[ref]["type"] == "Fail"
        assert len(to_json(said[ref])) < 20_000
        assert said[ref]["final"] == (int(ref) % 2 == 0)
    assert said["1"]["msg"] == f"{kind_of(kind(how))}: (its __str__ raises {how.__name__})"
    assert "in mute" in said["1"]["trace"]


def cancel(ref: str = "0", attempt: int = 1) -> dict[str, Any]:
    """Return what cancels a call."""
    return {"type": "Cancel", "instance": "i", "ref": ref, "attempt": attempt}


def deliver(processor: AssignmentProcessor, *messages: Any) -> Future[BatchResponse]:
    """Deliver messages in a batch."""
    return processor.on_next_batch(make_batch([to_json(each) for each in messages]))


def eventually(condition: Any) -> None:
    """Wait for a condition."""
    assert wait_for(condition, Deadline.after(WAIT))


def test_calls_are_made_and_answered_before_the_batch_advances() -> None:
    """Each answer is that of its call, under the instance; a call has keys for its effects."""
    answers, processes = Answers(), Processes()
    with worker(processes, answers) as found:
        sent = [assignment("double", f"0.{n}", args={"n": n}) for n in range(5)]
        assert deliver(found, *sent).result(WAIT) == BatchResponse.advance()
        assert {key for key, _ in answers.sent} == {b"i"}
        returned = sorted((each["ref"], each["obj"]) for _, each in answers.sent)
        assert returned == [(f"0.{n}", 2 * n) for n in range(5)]
        assert {each["type"] for _, each in answers.sent} == {"Return"}
    first = min(processes.begun, key=lambda call: call.ref)
    assert (first.key, first.call) == ("i/0.0/1", "i/0.0")


@pytest.mark.parametrize(
    ("process", "final", "text"),
    [
        ("refuse", True, "not in attempt 1, and never"),
        ("fail", False, "ValueError: attempt 1?"),
        ("leave", False, "SystemExit: 1"),
        ("large", True, "the answer has 1000063 bytes, and 1000000 are allowed"),
        ("strange", True, "strange returned what JSON does not know: Object of type set is not"),
        ("other", False, "the worker has no process 'other'; it has double, fail, hold"),
    ],
)
def test_a_call_that_fails_is_answered_so(process: str, final: bool, text: str) -> None:
    """With its message, its trace, and whether another attempt is of use; the thread goes on."""
    answers = Answers()
    with worker(Processes(), answers, threads=1) as found:
        for _ in range(2):
            deliver(found, assignment(process)).result(WAIT)
    for _, answer in answers.sent:
        assert (answer["type"], answer["final"]) == ("Fail", final)
        assert answer["msg"].startswith(text)
        assert bool(answer["trace"]) == (process != "other")


def test_an_answer_that_is_not_stored_has_the_batch_come_again() -> None:
    """With the producer's error; what comes again is called again, under the same key."""
    answers, processes = Answers(refused=1), Processes()
    with worker(processes, answers) as found:
        failed = deliver(found, assignment("double", args={"n": 1}))
        with pytest.raises(ProduceError):
            failed.result(WAIT)
        again = deliver(found, assignment("double", args={"n": 1}))
        assert again.result(WAIT) == BatchResponse.advance()
    assert [call.key for call in processes.begun] == ["i/0/1", "i/0/1"]
    assert [answer["obj"] for _, answer in answers.sent] == [2]


def test_a_call_that_comes_again_while_it_runs_is_made_once() -> None:
    """Both batches advance with its answer."""
    answers, processes = Answers(), Processes()
    with worker(processes, answers) as found:
        first = deliver(found, assignment("hold"))
        eventually(lambda: processes.begun)
        second = deliver(found, assignment("hold"))
        processes.go_on.set()
        assert first.result(WAIT) == second.result(WAIT) == BatchResponse.advance()
    assert len(processes.begun) == len(answers.sent) == 1


def test_calls_that_are_over_are_not_made_again_when_their_batch_is() -> None:
    """It has timed out for one that runs: each is made and answered once, in any of its batches."""
    answers, processes = Answers(), Processes()
    with worker(processes, answers) as found:
        quick = [assignment("double", f"0.{n}", args={"n": n}) for n in range(3)]
        first = deliver(found, *quick, assignment("hold", "1"))
        eventually(lambda: len(answers.sent) == 3)
        first.cancel()
        second = deliver(found, *quick, assignment("hold", "1"))
        third = deliver(found, *quick)
        assert third.result(WAIT) == BatchResponse.advance()
        processes.go_on.set()
        assert second.result(WAIT) == BatchResponse.advance()
        assert deliver(found, assignment("hold", "1")).result(WAIT) == BatchResponse.advance()
    assert sorted(call.ref for call in processes.begun) == ["0.0", "0.1", "0.2", "1"]
    assert len(answers.sent) == 4


def test_calls_are_forgotten_once_they_cannot_come_again() -> None:
    """When a commit has passed them, and when their partition is lost or given back."""
    answers, processes = Answers(), Processes()
    held = FakeAssignment()
    with worker(processes, answers) as found:
        passed = make_batch([b""], assignment=held)
        ways: list[Callable[[], None]] = [
            lambda: found.on_batch_processed(passed),
            lambda: found.on_partition_lost(held),
            lambda: found.on_stream_termination(held),
        ]
        for forget in ways:
            deliver(found, assignment("double", args={"n": 1})).result(WAIT)
            forget()
        deliver(found, assignment("double", args={"n": 1})).result(WAIT)
    assert len(processes.begun) == len(answers.sent) == 4


def test_a_cancelled_call_is_told_and_not_answered() -> None:
    """One that runs can look at it; one that waits, or comes in the same batch, is not made."""
    answers, processes = Answers(), Processes()
    with worker(processes, answers, threads=1) as found:
        running = deliver(found, assignment("hold", "0.a"))
        eventually(lambda: processes.begun)
        waiting = deliver(found, assignment("hold", "0.b"))
        both = deliver(found, assignment("hold", "0.c"), cancel("0.c"))
        others = deliver(found, cancel("0.a"), cancel("0.b"), cancel("0.a", attempt=7))
        assert others.result(WAIT) == BatchResponse.advance()
        assert processes.begun[0].cancelled.is_set()
        processes.go_on.set()
        for each in (running, waiting, both):
            assert each.result(WAIT) == BatchResponse.advance()
    assert [call.ref for call in processes.begun] == ["0.a"]
    assert answers.sent == []


def test_a_call_that_hangs_is_left_to_its_thread() -> None:
    """When its time is over the batch goes on, and so do other calls; it is not answered."""
    answers, processes = Answers(), Processes()
    with worker(processes, answers, threads=1) as found:
        hung = deliver(found, assignment("hold", timeout=300))
        assert hung.result(WAIT) == BatchResponse.advance()
        assert processes.begun[0].cancelled.is_set()
        deliver(found, assignment("double", "1", args={"n": 1})).result(WAIT)
        processes.go_on.set()
    assert [answer["ref"] for _, answer in answers.sent] == ["1"]


def test_threads_that_are_left_to_calls_are_counted_until_they_end() -> None:
    """A call that hangs and ends after all gives its thread back to the system."""
    processes = Processes()
    with worker(processes, Answers()) as found:
        deliver(found, assignment("hold", timeout=300)).result(WAIT)
        assert found.pool_snapshot().left == 1
        processes.go_on.set()
        eventually(lambda: found.pool_snapshot().left == 0)


@pytest.mark.parametrize("system_refuses", [False, True])
def test_more_calls_that_hang_than_the_pool_has_threads_end_the_channel(
    monkeypatch: pytest.MonkeyPatch, system_refuses: bool
) -> None:
    """The error says how many and what to do; so it is when the system has no more threads."""
    processes = Processes()
    failed: list[BaseException] = []
    with worker(processes, Answers(), 2, failed) as found:
        if system_refuses:
            monkeypatch.setattr(threading.Thread, "start", no_more_threads)
        hung = 1 if system_refuses else 3
        sent = [assignment("hold", f"{n}", timeout=300) for n in range(2)]
        assert deliver(found, *sent[:hung]).result(WAIT) == BatchResponse.advance()
        if not system_refuses:
            assert failed == []
            third = deliver(found, assignment("hold", "2", timeout=300))
            assert third.result(WAIT) == BatchResponse.advance()
        eventually(lambda: failed)
        assert found.pool_snapshot().left == hung
        monkeypatch.undo()
    assert isinstance(failed[0], ChannelFailedError)
    reason = "can't start new thread" if system_refuses else "the pool has 2"
    assert f"{hung} threads are left to calls that hang" in str(failed[0])
    assert reason in str(failed[0])


def no_more_threads(_: threading.Thread) -> None:
    """Take the place of what starts a thread."""
    raise RuntimeError("can't start new thread")


def test_a_call_whose_time_is_over_is_not_made() -> None:
    """The reducer has made another attempt of it; a warning says how late it is, for many once."""
    answers, processes = Answers(), Processes()
    with worker(processes, answers) as found, capture_logs() as logged:
        ago = int(time.time() * 1000) - 61_000
        late = [assignment("double", f"{n}", issued=ago, timeout=1000) for n in range(50)]
        assert deliver(found, *late).result(WAIT) == BatchResponse.advance()
        assert found.pool_snapshot().ended["late"] == 50
        eventually(lambda: logged)
    assert processes.begun == []
    assert answers.sent == []
    (said,) = logged
    assert (said["event"], said["calls"], said["process"]) == ("calls_late", 50, "double")
    assert 60 <= said["seconds"] < 60 + WAIT
    assert "clocks differ" in said["note"]


def test_expired_calls_end_without_a_free_thread() -> None:
    """Their batches go on with a warning, while a long call has the only thread."""
    processes = Processes()
    with worker(processes, Answers(), threads=1) as found, capture_logs() as logged:
        long = deliver(found, assignment("hold", "0"))
        eventually(lambda: processes.begun)
        kept = deliver(found, assignment("double", "1", args={"n": 1}))
        late = deliver(found, assignment("hold", "2", timeout=100))
        deliver(found, assignment("hold", "3")).cancel()
        assert late.result(WAIT) == BatchResponse.advance()
        eventually(lambda: found.pool_snapshot().ended["withdrawn"] == 1)
        eventually(lambda: [each["event"] for each in logged] == ["calls_late"])
        assert found.pool_snapshot().ended["late"] == 1
        assert found.pool_snapshot().waiting == 1
        assert not long.done()
        processes.go_on.set()
        kept.result(WAIT)
    assert [call.ref for call in processes.begun] == ["0", "1"]


def test_calls_of_a_partition_that_was_lost_are_not_made() -> None:
    """The channel cancels their answers, as another member has the calls."""
    processes = Processes()
    with worker(processes, Answers(), threads=1) as found:
        deliver(found, assignment("hold", "0.a"))
        eventually(lambda: processes.begun)
        deliver(found, assignment("hold", "0.b")).cancel()
        processes.go_on.set()
        deliver(found, assignment("double", "0.c", args={"n": 1})).result(WAIT)
    assert [call.ref for call in processes.begun] == ["0.a", "0.c"]


def test_the_pool_counts_its_threads_and_ended_calls() -> None:
    """Each call counts once, by how it ended; waiting and running calls are the present ones."""
    answers, processes = Answers(), Processes()
    with worker(processes, answers, threads=1) as found:
        deliver(found, assignment("hold", "0.a"))
        eventually(lambda: processes.begun)
        last = deliver(found, assignment("double", "0.b", args={"n": 1}), assignment("fail", "0.c"))
        now = found.pool_snapshot()
        assert (now.threads, now.busy, now.waiting) == (1, 1, 2)
        assert not any(now.ended.values())
        processes.go_on.set()
        last.result(WAIT)
        deliver(found, assignment("double", issued=1, timeout=1)).result(WAIT)
        answers.refused = 1
        with pytest.raises(ProduceError):
            deliver(found, assignment("double", "0.d", args={"n": 1})).result(WAIT)
        processes.go_on.clear()
        deliver(found, assignment("hold", "0.e", timeout=300)).result(WAIT)
        now = found.pool_snapshot()
        assert (now.threads, now.busy, now.waiting) == (1, 0, 0)
        assert now.ended == {
            "returned": 2, "failed": 1, "abandoned": 1, "late": 1, "not_needed": 0, "withdrawn": 0,
            "not_stored": 1, "unusable": 0,
        }  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"no JSON",
        b"[" * 100_000,
        b'"Assignment"',
        to_json({"type": "Assignment"}),
        to_json({"type": "Cancel", "instance": "i", "ref": [], "attempt": 1}),
        to_json(assignment("double", args={"n": 1}, type="Other")),
        to_json(assignment("double", args={"n": 1}, issued="now")),
        to_json(assignment("double", args={"n": 1}, timeout=None)),
        to_json(assignment("double", args={"n": 1}, issued=-(10**400))),
        to_json(assignment("double", args={"n": 1}, attempt=True)),
        to_json(assignment("double", args=[1])),
        json.dumps(assignment("double", args={"n": 1}, instance="\ud800")).encode(),
    ],
)
def test_a_record_that_is_no_assignment_is_skipped(value: bytes) -> None:
    """It is counted and logged with its place; other records of the batch are called."""
    answers, processes = Answers(), Processes()
    good = to_json(assignment("double", args={"n": 1}))
    with worker(processes, answers, threads=1) as found, capture_logs() as logged:
        batch = make_batch([good, value, to_json(assignment("double", "1", args={"n": 2}))])
        assert found.on_next_batch(batch).result(WAIT) == BatchResponse.advance()
        assert found.pool_snapshot().ended["unusable"] == 1
    assert [answer["obj"] for _, answer in answers.sent] == [2, 4]
    (said,) = (each for each in logged if each["event"] == "assignment_unusable")
    assert (said["topic"], said["partition"], said["offset"]) == ("events", 0, 1)


def test_options_that_cannot_be_used_are_named() -> None:
    """When the processor is made."""
    with pytest.raises(ValueError, match="threads is 0; it has to be a whole number from 1 on"):
        AtomicProcessExecutor(workflows="a:b", brokers="localhost:9092", threads=0)
