"""The reducer of workflows: the key is an instance, its state how far its term has got."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.apps.workflow.definitions import (
    MOST_ID,
    MOST_LEVELS,
    OTHERWISE,
    ROOT,
    Compiled,
    FailurePolicy,
    case_name,
    is_deeper,
    load_workflows,
)
from headrace.apps.workflow.errors import DefinitionError
from headrace.apps.workflow.messages import (
    ASSIGNMENT,
    CALL_EXCEPTION,
    CANCEL,
    EVENT_CALL,
    EVENT_RESULT,
    EVENT_RETURN,
    EVENT_START,
    EXCEPTIONS,
    FAIL,
    NO_RESULT,
    NO_SUCH_INSTANCE,
    RETURN,
    START,
    UNKNOWN_PROCESS,
    UPDATE,
)
from headrace.core.user_text import describe_value
from headrace.extensions.keyed.codecs import to_json
from headrace.keyed import Event, Fired, Output, Phase, Phases, Timer, at_clock, batched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Where the reducer writes to, by the names of the channel's outputs.
ASSIGNMENTS, RESULTS, OUTCOMES, HISTORY = "assignments", "results", "outcomes", "history"

#: Milliseconds for which a closed instance is remembered.
_KEEP = 600_000

#: Bytes that a row and an output may have, where the channel does not say.
_MAX_ROW, _MAX_OUTPUT = 512 << 10, 1_000_000

#: What of them is kept free, as one part of so many: for errors, and for what is beside a value.
_FREE = 8

#: Bytes of an open call in a state, beside its path.
_CALL_SIZE = 60

#: Milliseconds that a backoff grows to at most; one that begins longer stays as it is.
_MOST_BACKOFF = 60_000

#: Doublings of a backoff: more would make long numbers, and none is so long.
_DOUBLINGS = 16

#: Characters of the text of an error, and of its trace.
_TEXT = 4_000

#: Iterations that loops may end in one pass: those of them that call something are few.
_MOST_ITERATIONS = 10_000

_CALLS, _GRAVE = "calls", "grave"

#: What a part of a term comes to while calls of it are open.
_OPEN: Any = object()


def Workflow(  # noqa: N802 - a factory, named as a configuration names one
    *, workflows: str, history: bool = False, keep: str = "10m"
) -> WorkflowReducer:
    """Return the reducer of the workflows that an import path names.

    ``history`` has it write an instance's state after each step; ``keep`` is for how long a closed
    instance is remembered, a duration such as ``10m``.

    Raises:
        ImportPathError, DefinitionError: the workflows cannot be imported, or cannot be started.
        ValueError: ``keep`` is no duration.
    """
    from headrace.config.types.units import (  # noqa: PLC0415 - no worker needs pydantic for it
        parse_duration,
    )

    given: object = keep
    seconds = parse_duration(given) if isinstance(given, str) else None
    if seconds is None:
        raise ValueError(f"keep is {keep!r}; it has to be a duration such as 30s or 10m")
    compiled = load_workflows(workflows).check()
    return WorkflowReducer(compiled, history=history, keep=round(seconds * 1000))


#: How an attempt may end that is not open any more. A result that comes after its attempt's time
#: was over is counted as ``answered_late``, and the attempt that is open then as cancelled.
_OUTCOMES = ("returned", "failed", "timed_out", "cancelled")


def phase_of(state: Mapping[str, Any]) -> Phase:
    """Return what an instance counts as in metrics and status."""
    is_closed, outcome = state["phase"] == "closed", state.get("outcome")
    name = state["phase"]
    if is_closed:
        name = "completed" if outcome == EVENT_RESULT else "failed"
    ended = state.get("attempts", {})
    passed = state["counts"]
    late = passed.get("answered_late", 0)
    return Phase(
        name,
        None if is_closed else state["started"],
        (len(state["called"]),),
        (
            1,
            name == "completed",
            name == "failed",
            state["calls"],
            *[ended.get(each, 0) for each in _OUTCOMES],
            late,
            sum(passed.values()) - late,
        ),
    )


@batched
@dataclass(frozen=True, slots=True)
class WorkflowReducer:
    """Applies starts, answers and time-outs to instances. ``keep`` is in milliseconds.

    ``max_row`` and ``max_output`` are the bytes that the channel lets a state and an output have.

    Raises:
        DefinitionError: a term would take too much of a state.
    """

    definitions: Mapping[str, Compiled]
    history: bool = False
    keep: int = _KEEP
    max_row: int = _MAX_ROW
    max_output: int = _MAX_OUTPUT

    phases: ClassVar[Phases] = Phases(
        phase_of,
        ("open", "failing", "completed", "failed"),
        ("calls_in_flight",),
        (
            "instances_started",
            "instances_completed",
            "instances_failed",
            "attempts",
            *(f"attempts_{each}" for each in _OUTCOMES),
            "answered_late",
            "passed_over",
        ),
    )

    def __post_init__(self) -> None:
        most = self.state_room // 2
        for each in self.definitions.values():
            size = len(to_json(each.term))
            if size > most:
                raise DefinitionError(
                    f"workflow {each.id}: its term has {size} bytes, and {most} are allowed; "
                    "make what is large an argument, or raise state.max_row"
                )

    def with_limits(self, *, max_row: int, max_output: int) -> WorkflowReducer:
        """Return the reducer for a channel with these limits."""
        return replace(self, max_row=max_row, max_output=max_output)

    @property
    def state_room(self) -> int:
        """Return the bytes that the state of an open instance may have: that of a failing one has
        errors.
        """
        most = min(self.max_row, self.max_output) if self.history else self.max_row
        return most - most // _FREE

    @property
    def value_room(self) -> int:
        """Return the most bytes of a call's or an instance's arguments or result."""
        return self.max_output - self.max_output // _FREE

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the outputs that the channel has to have."""
        return ASSIGNMENTS, RESULTS, OUTCOMES, *((HISTORY,) if self.history else ())

    def __call__(
        self, key: str, state: dict[str, Any] | None, facts: Sequence[Event[Any] | Fired], now: int
    ) -> tuple[dict[str, Any] | None, list[Output], dict[str, Timer]]:
        """Return what becomes of an instance."""
        instance = _Instance(self, key, state, now)
        for fact in facts:
            if isinstance(fact, Fired):
                instance.fire(fact)
            else:
                instance.take(fact)
        return instance.state, instance.outputs, instance.timers()


class _TermError(Exception):
    """A term cannot go on. ``kind`` is the type of the failure."""

    def __init__(self, path: str, text: str, kind: str = EXCEPTIONS) -> None:
        super().__init__(text)
        self.path = path
        self.kind = kind


def _require_size(path: str, what: str, value: Any, most: int, beside: int = 0) -> int:
    """Return the bytes of a value, with so many beside it.

    Raises:
        _TermError: it is nothing that JSON knows, or has more bytes than it may have.
    """
    try:
        size = len(to_json(value)) + beside
    except (TypeError, ValueError, RecursionError) as error:
        raise _TermError(path, f"{path}: {what} is nothing that JSON knows: {error}") from None
    if size > most:
        text = f"{path}: {what} has {size} bytes, and {most} are allowed"
        raise _TermError(path, f"{text}; keep what is large elsewhere, and say where it is")
    return size


class _Instance:
    """An instance on its way through some facts.

    Its state has a ``phase``: ``open``, ``failing`` (it waits for its open calls, and fails then)
    or ``closed``. ``called`` has the open calls by their paths: the number of the attempt, when
    its time is over (ms), how many attempts there may be, and the backoff after the first one
    (ms). ``waiting`` has those that have failed and are to be made again: the attempt that was the
    last, when the next one is made, and how many there may be. ``returns`` has results by paths;
    what lies within a part that is done is left out. ``loops`` has iterations that are done,
    ``choices`` the cases that were taken. ``size`` are its bytes, or more. ``counts`` has what was
    passed over, by reason, ``attempts`` how attempts ended.
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
        match self.state:
            case {"phase": "closed", "until": until}:
                return {_GRAVE: at_clock(until)}
            case {"called": called}:
                due = [each[1] for each in (*called.values(), *self._waiting.values())]
                return {_CALLS: at_clock(min(due))} if due else {}
        return {}

    @property
    def _waiting(self) -> dict[str, Any]:
        """Return the calls that are to be made again."""
        assert self.state is not None
        waiting: dict[str, Any] = self.state.setdefault("waiting", {})  # a former version had none
        return waiting

    # --- facts ------------------------------------------------------------------------------

    def fire(self, fired: Fired) -> None:
        """Apply a timer: time out the calls that are late, and call what is due."""
        assert self.state is not None, "it has timers"
        self._ts = fired.due
        if fired.name == _GRAVE:
            self.state = None
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
        if kind not in {START, RETURN, FAIL}:
            raise ValueError(f"type is {kind!r}; it has to be {START}, {RETURN} or {FAIL}")
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
        elif self.state["phase"] == "closed":
            self._count("late")
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
            "phase": "open",
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
        self._event(EVENT_START, definition=name, args=args)
        if found is None:
            there = ", ".join(sorted(self._rules.definitions)) or "none"
            text = f"the reducer has no workflow {name!r}; it has {there}"
            self._give_up(ROOT, 0, text, "", UNKNOWN_PROCESS)
        else:
            self._advance(refusal=refusal)
        self._update()

    def _refusal(self, ref: str, what: str, value: Any) -> _TermError | None:
        """Return why a value cannot be taken, None if it can."""
        try:
            self._grown += _require_size(ref, what, value, self._rules.value_room)
        except _TermError as error:
            return error
        if not is_deeper(value, MOST_LEVELS + 1):  # arguments are in a dict
            return None
        text = f"{ref}: {what} has lists and dicts more than {MOST_LEVELS} deep within each other"
        return _TermError(ref, f"{text}; keep what it says flat")

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
            state["returns"][ref] = found if state["phase"] == "open" else None
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
            _fit_own(self._own_errors, self._rules.max_row // _FREE // _FREE)
        elif ref in self._own_errors:
            number, said, trace = self._own_errors[ref]
            text = f"{text}; attempt {number} failed: {said}"
        if not final and attempt < most and state["phase"] == "open":
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
        """Fail the instance: at once, or when its open calls are answered.

        Nothing is called any more, so that arguments and results give way to errors.
        """
        state = self.state
        assert state is not None
        error = {"type": kind, "ref": ref, "attempt": attempt, "msg": text, "trace": trace}
        state["errors"].append(error)
        _fit(state["errors"], self._rules.max_row // _FREE * 3 // 4)
        state["phase"], state["waiting"], state["own_errors"] = "failing", {}, {}
        state["args"], state["returns"] = None, dict.fromkeys(state["returns"])
        if state["policy"] == FailurePolicy.FAIL_FAST.value:
            for open_ref, (open_attempt, *_) in sorted(state["called"].items()):
                self._cancel(open_ref, open_attempt)
                self._count_ended("cancelled")
            state["called"] = {}
        self._close_if_failed()

    def _close_if_failed(self) -> None:
        """Close a failing instance that waits for nothing any more, with its first error.

        It has made the instance fail; those of calls that were open then have come later.
        """
        assert self.state is not None
        if not self.state["called"]:
            error = self.state["errors"][0]
            self._close_instance(error["type"], **{n: error[n] for n in ("ref", "msg", "trace")})

    def _cancel(self, ref: str, attempt: int) -> None:
        document = {"type": CANCEL, "instance": self._key, "ref": ref, "attempt": attempt}
        self._put_output(ASSIGNMENTS, document, (self._key, ref, attempt))

    # --- the term ---------------------------------------------------------------------------

    def _advance(self, at: str = ROOT, refusal: _TermError | None = None) -> None:
        """Open all calls that the term has come to, or close the instance.

        ``at`` is the call whose answer has led here; ``refusal`` says why it cannot be taken.
        """
        state = self.state
        assert state is not None
        if state["phase"] == "failing":
            self._close_if_failed()
            return
        run = _TermPass(state)
        try:
            if refusal is not None:
                raise refusal
            result = run.part(state["term"], ROOT, {}, state["args"])
            self._require_room(run, result, at)
        except _TermError as error:
            self._give_up(error.path, 0, str(error), "", error.kind)
            return
        for ref, call, args in run.opened:
            self._open_call(ref, call, args)
        if result is not _OPEN:
            self._close_instance(EVENT_RESULT, result=result)

    def _require_room(self, run: _TermPass, result: Any, at: str) -> None:
        """Check that the instance, and what it is to write, is not too large.

        Raises:
            _TermError: it is.
        """
        most = self._rules.value_room
        if result is not _OPEN:
            _require_size(at, "the result", result, most)
            return
        for ref, _, args in run.opened:
            _require_size(ref, "what it is called with", args, most)
        state, most = self.state, self._rules.state_room
        assert state is not None
        opened = sum(len(ref) + _CALL_SIZE for ref, _, _ in run.opened)
        state["size"] = state.get("size", most) + self._grown + len(at) + opened
        self._grown = 0
        if state["size"] > most:  # it was never so large: find out how large it is now
            state["size"] = _require_size(at, "the instance's state", state, most, opened)

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
        self.state = {
            **state,
            "phase": "closed",
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
            errors[0]["msg"] = errors[0]["msg"][: room // _FREE]
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
            last[1] = last[1][: room // _FREE]
            return


class _TermPass:
    """One pass through a term, from its root: what is done, and which calls are to be made.

    The state's returns, loops and choices are brought up to date.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._called = {**state["called"], **state.get("waiting", {})}
        self._returns: dict[str, Any] = state["returns"]
        self._loops: dict[str, int] = state["loops"]
        self._choices: dict[str, str] = state["choices"]
        self._iterations = 0
        #: Calls to be made: their paths, the term's, and their arguments.
        self.opened: list[tuple[str, list[Any], dict[str, Any]]] = []

    def part(self, term: list[Any], path: str, steps: dict[str, str], inputs: Any) -> Any:
        """Return what a part comes to, ``_OPEN`` while calls of it are.

        ``steps`` has the paths of earlier steps by their names.
        """
        if path in self._returns:
            return self._returns[path]
        match term:
            case ["call", _, args, *_]:
                if path not in self._called:
                    self.opened.append((path, term, self._values(args, path, steps, inputs)))
                return _OPEN
            case ["sequence", children]:
                return self._sequence(children, path, steps, inputs)
            case ["parallel", children]:
                found = {n: self.part(t, f"{path}.{n}", steps, inputs) for n, t in children}
                is_open = any(each is _OPEN for each in found.values())
                return _OPEN if is_open else self._store_result(path, found)
            case ["workflow", _, args, inner]:
                own = self._values(args, path, steps, inputs)
                return self._done_if(path, self.part(inner, f"{path}.{ROOT}", {}, own))
        part = self._choice if term[0] == "choice" else self._loop
        return part(term, path, steps, inputs)

    def _sequence(self, children: Any, path: str, steps: dict[str, str], inputs: Any) -> Any:
        found = None
        for name, child in children:
            own = f"{path}.{name}"
            found = self.part(child, own, steps, inputs)
            if found is _OPEN:
                return _OPEN
            steps = {**steps, name: own}
        return self._store_result(path, found)

    def _choice(self, term: list[Any], path: str, steps: dict[str, str], inputs: Any) -> Any:
        _, on, cases, otherwise = term
        if path not in self._choices:
            name = case_name(self._value(on, path, steps, inputs))
            known = any(name == each for each, _ in cases)
            if not known and otherwise is None:
                text = f"{path}: no case for {describe_value(name)}, and nothing otherwise"
                raise _TermError(path, text, NO_RESULT)
            self._choices[path] = name if known else OTHERWISE
        name = self._choices[path]
        child = next((each for case, each in cases if case == name), otherwise)
        return self._done_if(path, self.part(child, f"{path}.{name}", steps, inputs))

    def _loop(self, term: list[Any], path: str, steps: dict[str, str], inputs: Any) -> Any:
        _, name, body, times, until, most = term
        limit = most if times is None else self._value(times, path, steps, inputs)
        if not isinstance(limit, int) or isinstance(limit, bool):
            shown = describe_value(limit)
            raise _TermError(path, f"{path}: times is {shown}, which is no whole number")
        if limit < 0:
            raise _TermError(path, f"{path}: times is {limit}; it has to be 0 or more")
        number, found = self._loops.get(path, 0), None
        if number:
            found = self._returns.get(f"{path}[{number - 1}]")
        while number < limit:
            before = {name: f"{path}[{number - 1}]"}
            found = self.part(body, f"{path}[{number}]", {**steps, **before}, inputs)
            if found is _OPEN:
                return _OPEN
            self._iterations += 1
            if self._iterations > _MOST_ITERATIONS:
                text = f"{path}: more than {_MOST_ITERATIONS} iterations without a call"
                raise _TermError(path, text)
            self._forget_iteration(f"{path}[{number}]")
            self._returns.pop(f"{path}[{number - 1}]", None)
            number += 1
            self._loops[path] = number
            if until is not None and self._is_reached(found, until, path):
                return self._store_result(path, found)
        if until is not None:
            text = f"{path}: {'.'.join(until)!r} was not reached in {limit} iterations"
            raise _TermError(path, text)
        return self._store_result(path, found)

    @staticmethod
    def _is_reached(found: Any, until: Sequence[str], path: str) -> bool:
        """Return whether a field is true; raises a _TermError if it is no truth value."""
        said = field_of(found, until, path)
        if said is None or isinstance(said, bool):
            return bool(said)
        text = f"{path}: {'.'.join(until)!r} is {describe_value(said)}; it has to be true or false"
        raise _TermError(path, text)

    def _forget_iteration(self, path: str) -> None:
        """Delete the records of an iteration that is done, except its result."""
        for noted in (self._returns, self._loops, self._choices):
            for each in [each for each in noted if each.startswith((f"{path}.", f"{path}["))]:
                del noted[each]
        self._loops.pop(path, None)  # its body may be a loop itself, or a choice
        self._choices.pop(path, None)

    def _done_if(self, path: str, found: Any) -> Any:
        return _OPEN if found is _OPEN else self._store_result(path, found)

    def _store_result(self, path: str, found: Any) -> Any:
        """Store a part's result in place of those of its own parts."""
        for each in [each for each in self._returns if each.startswith((f"{path}.", f"{path}["))]:
            del self._returns[each]
        self._returns[path] = found
        return found

    def _values(
        self, args: dict[str, Any], path: str, steps: dict[str, str], inputs: Any
    ) -> dict[str, Any]:
        return {name: self._value(value, path, steps, inputs) for name, value in args.items()}

    def _value(self, value: list[Any], path: str, steps: dict[str, str], inputs: Any) -> Any:
        if value[0] == "is":
            return value[1]
        kind, name, fields = value
        if kind == "step":
            return field_of(self._returns.get(steps[name]), fields, path)
        if not isinstance(inputs, dict) or name not in inputs:
            raise _TermError(path, f"{path}: the instance was started without {name!r}")
        return field_of(inputs[name], fields, path)


def field_of(value: Any, fields: Sequence[str], path: str) -> Any:
    """Return a field of a value, and of that the next one. Nothing has all fields, as nothing.

    Raises:
        _TermError: there is no such field.
    """
    if value is None:
        return None
    for name in fields:
        if not isinstance(value, dict) or name not in value:
            raise _TermError(path, f"{path}: there is no field {'.'.join(fields)!r}")
        value = value[name]
    return value
