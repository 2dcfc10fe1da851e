"""An instance on its way through some facts: what becomes of its state, and what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.apps.workflow.definitions import MOST_ID, MOST_LEVELS, ROOT, FailurePolicy, is_deeper
from headrace.apps.workflow.messages import (
    ASSIGNMENT,
    CALL_EXCEPTION,
    CANCEL,
    CANCEL_INSTANCE,
    CANCELLED,
    EVENT_CALL,
    EVENT_RESULT,
    EVENT_RETURN,
    EVENT_START,
    EXCEPTIONS,
    FAIL,
    NO_SUCH_INSTANCE,
    RETURN,
    START,
    TIMED_OUT,
    UNKNOWN_PROCESS,
    UPDATE,
)
from headrace.apps.workflow.phases import NEXT, InstancePhase
from headrace.apps.workflow.term_pass import OPEN, Refusal, TermPass
from headrace.extensions.keyed.codecs import to_json
from headrace.keyed import Event, Fired, Output, Timer, at_clock

if TYPE_CHECKING:
    from headrace.apps.workflow.reducer import WorkflowReducer

#: Where the reducer writes to, by the names of the channel's outputs.
ASSIGNMENTS, RESULTS, OUTCOMES, HISTORY = "assignments", "results", "outcomes", "history"

#: What is kept free of a row and an output, as one part of so many: for errors, and for what is
#: beside a value.
FREE = 8

#: Bytes of an open call in a state, beside its path.
_CALL_SIZE = 60

#: Milliseconds that a backoff grows to at most; one that begins longer stays as it is.
_MOST_BACKOFF = 60_000

#: Doublings of a backoff: more would make long numbers, and none is so long.
_DOUBLINGS = 16

#: Characters of the text of an error, and of its trace.
_TEXT = 4_000

_CALLS, _LIMIT, _GRAVE = "calls", "limit", "grave"

#: What an outcome has of the error that led to it.
_OUTCOME_MEMBERS = ("ref", "msg", "trace", "by", "reason")

#: What an instance reads.
_EVENTS = (START, RETURN, FAIL, CANCEL_INSTANCE)


def _size_of(path: str, what: str, value: Any, most: int, beside: int = 0) -> int | Refusal:
    """Return the bytes of a value, with those ``beside`` it; a Refusal where they are too many."""
    try:
        size = len(to_json(value)) + beside
    except (TypeError, ValueError, RecursionError) as error:
        return Refusal(path, f"{path}: {what} is nothing that JSON knows: {error}")
    if size > most:
        text = f"{path}: {what} has {size} bytes, and {most} are allowed"
        return Refusal(path, f"{text}; keep what is large elsewhere, and say where it is")
    return size


def _refused(size: int | Refusal) -> Refusal | None:
    return size if isinstance(size, Refusal) else None


class Instance:
    """An instance on its way through some facts.

    Its state has a ``phase``, one of :class:`InstancePhase`. ``called`` has the open calls by
    their paths: the number of the attempt, when its time is over (ms), how many attempts there may
    be, and the backoff after the first one (ms). ``waiting`` has those that have failed and are to
    be made again: the attempt that was the last, when the next one is made, and how many there may
    be. ``returns`` has results by paths; what lies within a part that is done is left out.
    ``loops`` has iterations that are done, ``choices`` the cases that were taken. ``size`` are its
    bytes, or more. ``counts`` has what was passed over, by reason, ``attempts`` how attempts ended.
    ``limit`` is when the instance's time is over (ms), where it has a limit, and ``began`` from
    when it counts.

    What a former version did not write is absent from its states, and read as empty.
    """

    def __init__(
        self, rules: WorkflowReducer, key: str, state: dict[str, Any] | None, now: int
    ) -> None:
        self._rules = rules
        self._key = key
        self._now = now
        self.state = state
        self.outputs: list[Output] = []
        self._ts = 0
        self._attempts: dict[str, int] = {}
        self._grown = 0

    def timers(self) -> dict[str, Timer]:
        """Return what the instance waits for."""
        state = self.state
        if state is None:
            return {}
        if self._phase is InstancePhase.CLOSED:
            return {_GRAVE: at_clock(state["until"])}
        due = [each[1] for each in (*state["called"].values(), *self._waiting.values())]
        found = {_CALLS: min(due, default=None), _LIMIT: state.get("limit")}
        return {name: at_clock(at) for name, at in found.items() if at is not None}

    @property
    def _phase(self) -> InstancePhase:
        assert self.state is not None
        return InstancePhase(self.state["phase"])

    def _enter(self, phase: InstancePhase) -> None:
        """Enter a phase that may follow the present one."""
        assert self.state is not None
        assert phase in NEXT[self._phase], f"{phase} does not follow {self._phase}"
        self.state["phase"] = phase.value

    @property
    def _waiting(self) -> dict[str, Any]:
        """Return the calls that are to be made again."""
        assert self.state is not None
        waiting: dict[str, Any] = self.state.setdefault("waiting", {})  # a former version had none
        return waiting

    # --- facts ------------------------------------------------------------------------------

    def fire(self, fired: Fired) -> None:
        """Apply a timer: time out what is late, the instance or its calls, and call what is due."""
        assert self.state is not None, "it has timers"
        self._ts = fired.due
        if fired.name == _GRAVE:
            self.state = None
            return
        if self._phase is InstancePhase.CLOSED:  # by the timer before it, of the same time
            return
        if fired.name == _LIMIT:
            self._stop_at_limit()
            return
        called = self.state["called"].items()
        late = [(ref, each[0]) for ref, each in called if each[1] <= self._now]
        for ref, attempt in sorted(late):
            if ref in self.state["called"]:  # else the one before it has closed the instance
                self._cancel(ref, attempt)
                self._count_ended("timed_out")
                self._failed(ref, f"attempt {attempt} was not answered in time", "", own=False)
        self._resume()
        self._update()

    def take(self, event: Event[Any]) -> None:
        """Apply an event.

        Raises:
            ValueError: it is none of a workflow, or of another instance.
        """
        self._ts, value = event.ts, event.value
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in _EVENTS:
            raise ValueError(f"type is {kind!r}; it has to be one of {', '.join(_EVENTS)}")
        if value.get("instance") != self._key:
            raise ValueError(
                f"the event is of instance {value.get('instance')!r}, and its key is "
                f"{self._key!r}: produce it under the instance"
            )
        if kind == START:
            self._start(value, event.ts)
        elif self.state is None:
            ref = value.get("ref")
            self._event(NO_SUCH_INSTANCE, ref=ref)
        elif self._phase is InstancePhase.CLOSED:
            self._count("late")
        elif kind == CANCEL_INSTANCE:
            by, reason = (_writable(value.get(name, "")) for name in ("by", "reason"))
            self._stop(CANCELLED, f"cancelled by {by}: {reason}", by=by, reason=reason)
        else:
            self._answered(kind, value)

    def _start(self, value: dict[str, Any], ts: int) -> None:
        if self.state is not None:
            self._count("duplicate_start")
            return
        size = len(self._key.encode())
        if size > MOST_ID:
            raise ValueError(f"the instance's id has {size} bytes, and {MOST_ID} are allowed")
        name, args = _writable(value.get("definition")), value.get("args")
        found = self._rules.definitions.get(name)
        refusal = self._refusal(ROOT, "what it is started with", args)
        if refusal is not None:
            args = None
        self.state = {
            "phase": InstancePhase.OPEN.value,
            "definition": name,
            "policy": FailurePolicy.WAIT_ALL.value if found is None else found.policy.value,
            "term": None if found is None else found.term,
            "args": args,
            "started": ts,
            "called": {},
            "waiting": {},
            "returns": {},
            "loops": {},
            "choices": {},
            "errors": [],
            "calls": 0,
            "attempts": {},
            "counts": {},
        }
        if found is not None and found.limit is not None:
            self.state["began"], self.state["limit"] = self._now, self._now + found.limit
        self._event(EVENT_START, definition=name, args=args)
        if found is None:
            there = ", ".join(sorted(self._rules.definitions)) or "none"
            text = f"the reducer has no workflow {name!r}; it has {there}"
            self._give_up(ROOT, 0, text, "", UNKNOWN_PROCESS)
        else:
            self._advance(refusal=refusal)
        self._update()

    def _refusal(self, ref: str, what: str, value: Any) -> Refusal | None:
        """Return why a value cannot be taken, None if it can."""
        size = _size_of(ref, what, value, self._rules.value_room)
        if isinstance(size, Refusal):
            return size
        self._grown += size
        if not is_deeper(value, MOST_LEVELS + 1):  # arguments are in a dict
            return None
        text = f"{ref}: {what} has lists and dicts more than {MOST_LEVELS} deep within each other"
        return Refusal(ref, f"{text}; keep what it says flat")

    def _answered(self, kind: str, value: dict[str, Any]) -> None:
        """Apply what a worker answered to a call."""
        state = self.state
        assert state is not None
        ref, attempt = str(value.get("ref")), value.get("attempt")
        open_attempt = state["called"].get(ref, (0,))[0]
        if not open_attempt and ref not in self._waiting:
            self._count("duplicate" if self._is_done(ref) else "unknown")
            return
        if kind == FAIL:
            if attempt != open_attempt:
                self._count("stale")
                return
            text, trace = (_writable(value.get(name, "")) for name in ("msg", "trace"))
            self._count_ended("failed")
            self._failed(ref, text, trace, final=bool(value.get("final")))
        else:
            if attempt == open_attempt:
                self._count_ended("returned")
            else:  # an earlier attempt has answered after its time
                self._count("answered_late")
                if open_attempt:
                    self._cancel(ref, open_attempt)
                    self._count_ended("cancelled")
            state["called"].pop(ref, None)
            self._waiting.pop(ref, None)
            self._own_errors.pop(ref, None)
            found = value.get("obj")
            refusal = self._refusal(ref, "what it returned", found)
            if refusal is not None:
                found = None
            state["returns"][ref] = found if self._phase is InstancePhase.OPEN else None
            self._event(EVENT_RETURN, ref=ref, attempt=attempt, res=found)
            self._advance(ref, refusal)
        self._update()

    def _is_done(self, ref: str) -> bool:
        """Return whether a call was made and answered."""
        assert self.state is not None
        returns, loops = self.state["returns"], self.state["loops"]
        if any(ref == path or ref.startswith((f"{path}.", f"{path}[")) for path in returns):
            return True
        for path, done in loops.items():
            number = ref[len(path) + 1 :].partition("]")[0]
            if ref.startswith(f"{path}[") and number.isdecimal() and int(number) < done:
                return True
        return False

    # --- failures ---------------------------------------------------------------------------

    @property
    def _own_errors(self) -> dict[str, list[Any]]:
        """Return what the last attempt that a worker answered said, by open call: attempt, text,
        trace.
        """
        assert self.state is not None
        found: dict[str, list[Any]] = self.state.setdefault("own_errors", {})
        return found

    def _failed(
        self, ref: str, text: str, trace: str, *, final: bool = False, own: bool = True
    ) -> None:
        """Retry a call, or give it up.

        The error is its ``own`` where a worker has answered; one that was not answered in time has
        none, and what an attempt before it said goes along.
        """
        state = self.state
        assert state is not None
        attempt, _, most, *backoff = state["called"].pop(ref)
        self._event(CALL_EXCEPTION, ref=ref, attempt=attempt, msg=text, trace=trace)
        if own:
            self._own_errors[ref] = [attempt, text, trace]
            _fit_own(self._own_errors, self._rules.max_row // FREE // FREE)
        elif ref in self._own_errors:
            number, said, trace = self._own_errors[ref]
            text = f"{text}; attempt {number} failed: {said}"
        if not final and attempt < most and self._phase is InstancePhase.OPEN:
            first = backoff[0] if backoff else 0  # a former version had none
            pause = min(first << min(attempt - 1, _DOUBLINGS), max(first, _MOST_BACKOFF))
            self._waiting[ref] = [attempt, self._now + pause, most]
            self._resume()
        else:
            self._own_errors.pop(ref, None)
            self._give_up(ref, attempt, text, trace)

    def _resume(self) -> None:
        """Make the attempts that have waited for long enough."""
        due = [ref for ref, (_, at, _) in self._waiting.items() if at <= self._now]
        for ref in due:
            self._attempts[ref] = self._waiting.pop(ref)[0]
        if due:
            self._advance()

    def _give_up(
        self, ref: str, attempt: int, text: str, trace: str, kind: str = EXCEPTIONS
    ) -> None:
        """Fail the instance: at once, or when its open calls are answered."""
        assert self.state is not None
        error = {"type": kind, "ref": ref, "attempt": attempt, "msg": text, "trace": trace}
        self._begin_failing(error)
        if self.state["policy"] == FailurePolicy.FAIL_FAST.value:
            self._cancel_open()
        self._close_if_failed()

    def _begin_failing(self, error: dict[str, Any]) -> None:
        """Make no calls any more, so that arguments and results give way to errors."""
        state = self.state
        assert state is not None
        if self._phase is InstancePhase.OPEN:
            self._enter(InstancePhase.FAILING)
        state["errors"].append(error)
        _fit(state["errors"], self._rules.max_row // FREE * 3 // 4)
        state["waiting"], state["own_errors"] = {}, {}
        state["args"], state["returns"] = None, dict.fromkeys(state["returns"])

    def _stop(self, kind: str, text: str, **members: str) -> None:
        """End the instance: open calls are cancelled, and those that wait are withdrawn.

        One that is failing already ends with its own first error.
        """
        error = {"type": kind, "ref": ROOT, "attempt": 0, "msg": text, "trace": ""}
        self._begin_failing({**error, **members})
        self._cancel_open()
        self._close_if_failed()
        self._update()

    def _stop_at_limit(self) -> None:
        assert self.state is not None
        seconds = (self.state.pop("limit") - self.state["began"]) / 1000
        self._stop(TIMED_OUT, f"the instance's time limit of {seconds:g} s is over")

    def _cancel_open(self) -> None:
        """Cancel all open calls."""
        assert self.state is not None
        for ref, (attempt, *_) in sorted(self.state["called"].items()):
            self._cancel(ref, attempt)
            self._count_ended("cancelled")
        self.state["called"] = {}

    def _close_if_failed(self) -> None:
        """Close a failing instance that waits for nothing any more, with its first error.

        It has made the instance fail; those of calls that were open then have come later.
        """
        assert self.state is not None
        if not self.state["called"]:
            error = self.state["errors"][0]
            self._close_instance(
                error["type"], **{n: error[n] for n in _OUTCOME_MEMBERS if n in error}
            )

    def _cancel(self, ref: str, attempt: int) -> None:
        document = {"type": CANCEL, "instance": self._key, "ref": ref, "attempt": attempt}
        self._put_output(ASSIGNMENTS, document, (self._key, ref, attempt))

    # --- the term ---------------------------------------------------------------------------

    def _advance(self, at: str = ROOT, refusal: Refusal | None = None) -> None:
        """Open all calls that the term has come to, or close the instance.

        ``at`` is the call whose answer has led here; ``refusal`` says why it cannot be taken.
        """
        state = self.state
        assert state is not None
        if self._phase is InstancePhase.FAILING:
            self._close_if_failed()
            return
        run = TermPass(state)
        result = run.result(state["term"], state["args"]) if refusal is None else refusal
        if not isinstance(result, Refusal):
            refusal = self._too_large(run, result, at)
        if isinstance(refusal := refusal or result, Refusal):
            self._give_up(refusal.path, 0, refusal.text, "", refusal.kind)
            return
        for ref, call, args in run.opened:
            self._open_call(ref, call, args)
        if result is not OPEN:
            self._close_instance(EVENT_RESULT, result=result)

    def _too_large(self, run: TermPass, result: Any, at: str) -> Refusal | None:
        """Return why the instance, or what it is to write, is too large; None if it is not."""
        most = self._rules.value_room
        if result is not OPEN:
            return _refused(_size_of(at, "the result", result, most))
        for ref, _, args in run.opened:
            refusal = _refused(_size_of(ref, "what it is called with", args, most))
            if refusal is not None:
                return refusal
        state, most = self.state, self._rules.state_room
        assert state is not None
        opened = sum(len(ref) + _CALL_SIZE for ref, _, _ in run.opened)
        state["size"] = state.get("size", most) + self._grown + len(at) + opened
        self._grown = 0
        if state["size"] <= most:
            return None
        # it was never so large: find out how large it is now
        size = _size_of(at, "the instance's state", state, most, opened)
        state["size"] = most if isinstance(size, Refusal) else size
        return _refused(size)

    def _open_call(self, ref: str, call: list[Any], args: dict[str, Any]) -> None:
        state = self.state
        assert state is not None
        _, process, _, most, timeout, *backoff = call
        attempt = self._attempts.pop(ref, 0) + 1
        state["called"][ref] = [attempt, self._now + timeout, most, *backoff]
        state["calls"] += 1
        document = {
            "type": ASSIGNMENT,
            "instance": self._key,
            "ref": ref,
            "attempt": attempt,
            "proc": process,
            "args": args,
            "issued": self._now,
            "timeout": timeout,
        }
        # with the attempt: the next one is read by another worker, where there are several
        self._put_output(ASSIGNMENTS, document, (self._key, ref, attempt))
        self._event(EVENT_CALL, ref=ref, attempt=attempt, proc=process, args=args)

    def _close_instance(self, kind: str, **members: Any) -> None:
        """Write the instance's outcome, and keep of it what late answers are known by."""
        state = self.state
        assert state is not None
        self._event(kind, **members)
        outcome = {
            "type": kind,
            "instance": self._key,
            "definition": state["definition"],
            **members,
            "started": state["started"],
            "ended": self._now,
            "calls": state["calls"],
            "errors": state["errors"],
        }
        self._put_output(OUTCOMES, outcome)
        self._enter(InstancePhase.CLOSED)
        self.state = {
            **state,
            "outcome": kind,
            "until": self._now + self._rules.keep,
            # results may be large, and nothing waits for them
            "returns": dict.fromkeys(state["returns"]),
            "args": None,
            "own_errors": {},
        }

    # --- what is written --------------------------------------------------------------------

    def _put_output(self, to: str, value: Any, key: Any = ...) -> None:
        """Write something, with the time of the fact that it comes of."""
        self.outputs.append(Output(value, to, key, self._ts))

    def _event(self, kind: str, **members: Any) -> None:
        document = {"type": kind, "instance": self._key, **members, "timestamp": self._now}
        self._put_output(RESULTS, document)

    def _update(self) -> None:
        if self._rules.history:
            document = {"type": UPDATE, "instance": self._key, "pii": self.state}
            # as it is now: the next fact changes the state
            self._put_output(HISTORY, to_json(document | {"timestamp": self._now}))

    def _count_ended(self, outcome: str) -> None:
        """Count how an attempt has ended."""
        assert self.state is not None
        ended = self.state.setdefault("attempts", {})  # a former version had none
        ended[outcome] = ended.get(outcome, 0) + 1

    def _count(self, reason: str) -> None:
        assert self.state is not None
        counts = self.state["counts"]
        counts[reason] = counts.get(reason, 0) + 1


def _writable(value: object) -> str:
    """Return a text of an answer as it can be written, and not longer than it has to be."""
    return str(value)[:_TEXT].encode("utf-8", "replace").decode()


def _fit(errors: list[dict[str, Any]], room: int) -> None:
    """Leave out what errors have too much: traces, then errors, then text; of the first one last.

    It is the one that says why the instance has failed.
    """
    while len(to_json(errors)) > room:
        traced = next((each for each in (*errors[1:], errors[0]) if each["trace"]), None)
        if traced is not None:
            traced["trace"] = ""
        elif len(errors) > 1:
            del errors[1]
        else:
            errors[0]["msg"] = errors[0]["msg"][: room // FREE]
            return


def _fit_own(errors: dict[str, list[Any]], room: int) -> None:
    """Leave out what attempts' own errors have too much: traces, then text, of the oldest first."""
    while len(to_json(errors)) > room:
        traced = next((each for each in errors.values() if each[2]), None)
        if traced is not None:
            traced[2] = ""
        elif len(errors) > 1:
            del errors[next(iter(errors))]
        else:
            (last,) = errors.values()
            last[1] = last[1][: room // FREE]
            return
