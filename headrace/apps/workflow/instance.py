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
    EVENT_CATCH,
    EVENT_RESULT,
    EVENT_RESUME,
    EVENT_RETURN,
    EVENT_SIGNAL,
    EVENT_START,
    EVENT_UNDO,
    EVENT_WAIT,
    EXCEPTIONS,
    FAIL,
    NO_SUCH_INSTANCE,
    RETURN,
    SIGNAL,
    START,
    TERMINATED,
    TIMED_OUT,
    UNKNOWN_PROCESS,
    UPDATE,
)
from headrace.apps.workflow.phases import NEXT, ScopePhase
from headrace.apps.workflow.term_pass import (
    BODY,
    ERROR,
    OPEN,
    TIMEOUT_KINDS,
    Opened,
    Refusal,
    TermPass,
    extras_of,
    undo_args,
)
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

#: Characters of an error that a Try keeps for the term that takes it.
_KEPT_TEXT = 2_000

#: Signals whose ids are known, so that one that is sent again counts once.
_MOST_SIGNALS = 100

#: Names of the kinds of one error, and characters of each.
_MOST_KINDS, _KIND_TEXT = 20, 100

#: The scope that the instance is; others are named by their paths.
_INSTANCE = ""

#: What the path of the call ends with that undoes another one.
_UNDO = ".undo"

#: What an outcome has of the error that led to it.
_OUTCOME_MEMBERS = ("ref", "msg", "trace", "by", "reason")

#: What a closed instance needs no more.
_OPEN_MEMBERS = frozenset(
    {"limit", "began", "pauses", "signals", "heard", "scopes", "undo_of", "undos"}
)

#: What an instance reads.
_EVENTS = (START, RETURN, FAIL, SIGNAL, CANCEL_INSTANCE)


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

    Its state has a ``phase``, one of :class:`ScopePhase`. ``called`` has the open calls by
    their paths: the number of the attempt, when its time is over (ms), how many attempts there may
    be, the backoff after the first one (ms), and other limits by kinds of error, where there are.
    ``waiting`` has those that have failed and are to be made again: the attempt that was the last,
    when the next one is made, and how many there may be. ``returns`` has results by paths; what
    lies within a part that is done is left out. ``loops`` has iterations that are done, ``choices``
    the cases that were taken. ``size`` are its bytes, or more. ``counts`` has what was passed over,
    by reason, ``attempts`` how attempts ended. ``limit`` is when the instance's time is over (ms),
    where it has a limit, and ``began`` from when it counts.

    ``pauses`` has waits and sleeps that have begun, and when they are over (ms), ``signals`` the
    values that nothing has waited for yet, by their names, ``heard`` the ids of the last signals.
    ``scopes`` has each Try that has begun and is not over, by its path: its ``phase``, the kinds of
    error that it ``catches``, and the ``error`` that it has. ``undo_of`` has what undoes an open
    call, ``undos`` what undoes each call that is done, in the order of their ends; ``undone`` and
    ``not_undone`` count what became of those.

    What a former version did not write is absent from its states, and read as empty. The instance
    is the outermost scope, whose path is that of its whole term.
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
        self._to_advance: list[str] = []
        self._is_advancing = False

    def timers(self) -> dict[str, Timer]:
        """Return what the instance waits for."""
        state = self.state
        if state is None:
            return {}
        if self._phase(_INSTANCE) is ScopePhase.CLOSED:
            return {_GRAVE: at_clock(state["until"])}
        due = [each[1] for each in (*state["called"].values(), *self._waiting.values())]
        due += [each for each in state.get("pauses", {}).values() if each is not None]
        found = {_CALLS: min(due, default=None), _LIMIT: state.get("limit")}
        return {name: at_clock(at) for name, at in found.items() if at is not None}

    # --- scopes -----------------------------------------------------------------------------

    def _phase(self, scope: str) -> ScopePhase:
        assert self.state is not None
        holder = self.state if scope == _INSTANCE else self._scopes[scope]
        return ScopePhase(holder["phase"])

    def _enter(self, scope: str, phase: ScopePhase) -> None:
        """Enter a phase that may follow the present one."""
        assert self.state is not None
        present = self._phase(scope)
        assert phase in NEXT[present], f"{phase} does not follow {present}"
        holder = self.state if scope == _INSTANCE else self._scopes[scope]
        holder["phase"] = phase.value

    @property
    def _scopes(self) -> dict[str, dict[str, Any]]:
        """Return each Try that is not over, by its path."""
        assert self.state is not None
        scopes: dict[str, dict[str, Any]] = self.state.get("scopes", {})
        return scopes

    def _scope_of(self, path: str) -> str:
        """Return the innermost scope whose body has what is at a path."""
        around = [scope for scope in self._scopes if _is_in_scope(scope, path)]
        return max(around, key=len, default=_INSTANCE)

    def _is_open(self, path: str) -> bool:
        """Return whether what is at a path goes on."""
        return self._phase(self._scope_of(path)) is ScopePhase.OPEN

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
        if self._phase(_INSTANCE) is ScopePhase.CLOSED:  # by the timer before it, of the same time
            return
        if fired.name == _LIMIT:
            seconds = (self.state.pop("limit") - self.state["began"]) / 1000
            self._stop(TIMED_OUT, f"the instance's time limit of {seconds:g} s is over")
            return
        called = self.state["called"].items()
        late = [(ref, each[0]) for ref, each in called if each[1] <= self._now]
        for ref, attempt in sorted(late):
            if ref in self.state["called"]:  # else the one before it has closed the instance
                self._cancel(ref, attempt)
                self._count_ended("timed_out")
                text = f"attempt {attempt} was not answered in time"
                self._failed(ref, text, "", TIMEOUT_KINDS, own=False)
        self._resume()
        pauses = self.state.get("pauses", {}).values()
        if any(due is not None and due <= self._now for due in pauses):
            self._advance()
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
        elif self._phase(_INSTANCE) is ScopePhase.CLOSED:
            self._count("late")
        elif kind == CANCEL_INSTANCE:
            self._cancelled(value)
        elif kind == SIGNAL:
            self._signalled(value)
        else:
            self._answered(kind, value)

    def _cancelled(self, value: dict[str, Any]) -> None:
        by, reason = (_writable(value.get(name, "")) for name in ("by", "reason"))
        if value.get("terminate"):
            text = f"terminated by {by}: {reason}"
            self._stop(TERMINATED, text, undoes=False, by=by, reason=reason)
        else:
            self._stop(CANCELLED, f"cancelled by {by}: {reason}", by=by, reason=reason)

    def _signalled(self, value: dict[str, Any]) -> None:
        """Accept a signal: whatever waits for it goes on with it, now or once it comes there."""
        state = self.state
        assert state is not None
        name, given, own = value.get("name"), value.get("value"), value.get("id")
        if not isinstance(name, str) or not name or not isinstance(own, str):
            raise ValueError(f"a signal's name is {name!r}, and its id {own!r}; both are texts")
        name, own = _writable(name), _writable(own)
        if self._phase(_INSTANCE) is not ScopePhase.OPEN:
            self._count("late")
            return
        known = state.setdefault("heard", [])
        if own in known:
            self._count("duplicate_signal")
            return
        refusal = self._signal_refusal(name, given)
        if refusal is not None:
            self._event(EVENT_SIGNAL, name=name, refused=refusal.text)
            return
        known.append(own)
        del known[:-_MOST_SIGNALS]
        self._event(EVENT_SIGNAL, name=name, value=given)
        state.setdefault("signals", {}).setdefault(name, []).append(given)
        self._advance()
        self._update()

    def _signal_refusal(self, name: str, value: Any) -> Refusal | None:
        """Return why a signal cannot be taken; it is the sender's mistake, not the instance's."""
        before = self._grown
        refusal = self._refusal(ROOT, f"the signal {name!r}", value)
        if refusal is None:
            size = _size_of(ROOT, "the state with it", [self.state, value], self._rules.state_room)
            refusal = _refused(size)
        if refusal is not None:
            self._grown = before
        return refusal

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
            "phase": ScopePhase.OPEN.value,
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
        elif refusal is not None:
            self._refuse(refusal)
        else:
            self._advance()
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
            kinds = _kinds_of(value.get("kinds"))
            self._failed(ref, text, trace, kinds, final=bool(value.get("final")))
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
            self._returned(ref, attempt, value.get("obj"))
        self._update()

    def _returned(self, ref: str, attempt: Any, found: Any) -> None:
        """Apply what a call has returned."""
        assert self.state is not None
        refusal = self._refusal(ref, "what it returned", found)
        shown = found if refusal is None else None
        self._event(EVENT_RETURN, ref=ref, attempt=attempt, res=shown)
        if self._undo_record(ref) is not None:
            self._undo_over(ref, "undone")
            return
        not_undone = self._note_undo(ref, found)  # as it came: what undoes it may need little of it
        wrong = [each.text for each in (refusal, not_undone) if each is not None]
        scope = self._scope_of(ref)
        if self._phase(scope) is not ScopePhase.OPEN:
            if scope == _INSTANCE:
                self.state["returns"][ref] = None
            self._settle(scope)
        elif wrong:
            self._refuse(Refusal(ref, "; ".join(wrong)))
        else:
            self.state["returns"][ref] = found
            self._advance(ref)

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
        self,
        ref: str,
        text: str,
        trace: str,
        kinds: tuple[str, ...],
        *,
        final: bool = False,
        own: bool = True,
    ) -> None:
        """Retry a call, or give it up.

        The error is its ``own`` where a worker has answered; one that was not answered in time has
        none, and what an attempt before it said goes along.
        """
        state = self.state
        assert state is not None
        attempt, _, most, *rest = state["called"].pop(ref)
        self._event(CALL_EXCEPTION, ref=ref, attempt=attempt, msg=text, trace=trace)
        if own:
            self._own_errors[ref] = [attempt, text, trace]
            _fit_own(self._own_errors, self._rules.max_row // FREE // FREE)
        elif ref in self._own_errors:
            number, said, trace = self._own_errors[ref]
            text = f"{text}; attempt {number} failed: {said}"
        first = rest[0] if rest else 0  # a former version had none
        limits = rest[1] if len(rest) > 1 else {}
        most, first = next((limits[kind] for kind in kinds if kind in limits), (most, first))
        is_undo = self._undo_record(ref) is not None
        if not final and attempt < most and (is_undo or self._is_open(ref)):
            pause = min(first << min(attempt - 1, _DOUBLINGS), max(first, _MOST_BACKOFF))
            self._waiting[ref] = [attempt, self._now + pause, most]
            self._resume()
            return
        self._own_errors.pop(ref, None)
        if is_undo:
            self._undo_over(ref, "not_undone", text, trace)
        else:
            state.get("undo_of", {}).pop(ref, None)
            self._give_up(ref, attempt, text, trace, kinds=kinds)

    def _resume(self) -> None:
        """Make the attempts that have waited for long enough."""
        due = [ref for ref, (_, at, _) in self._waiting.items() if at <= self._now]
        for ref in due:
            self._attempts[ref] = self._waiting.pop(ref)[0]
            record = self._undo_record(ref)
            if record is not None:
                self._open_undo(record)
        if due:
            self._advance()

    def _refuse(self, refusal: Refusal) -> None:
        """Fail a part that cannot go on."""
        if refusal.cancels:
            self._cancel_open(refusal.path)
        self._give_up(refusal.path, 0, refusal.text, "", refusal.kind, refusal.kinds)

    def _give_up(  # noqa: PLR0917 - the members of an error
        self,
        ref: str,
        attempt: int,
        text: str,
        trace: str,
        kind: str = EXCEPTIONS,
        kinds: tuple[str, ...] = (),
    ) -> None:
        """Fail the scope around what has failed for good."""
        error = {"type": kind, "ref": ref, "attempt": attempt, "msg": text, "trace": trace}
        self._fail(self._scope_of(ref), error, kinds)

    def _stop(self, kind: str, text: str, *, undoes: bool = True, **members: str) -> None:
        """End the instance: open calls are cancelled, and those that wait are withdrawn.

        One that is failing already ends with its own first error. What was done is undone, unless
        the instance is terminated.
        """
        state = self.state
        assert state is not None
        if undoes and self._phase(_INSTANCE) is ScopePhase.UNDOING:
            self._count("late")
            return
        if not undoes:
            self._count_undos("not_undone", len(state.pop("undos", [])))
            state["waiting"] = {}
        error = {"type": kind, "ref": ROOT, "attempt": 0, "msg": text, "trace": "", **members}
        self._fail(_INSTANCE, error, (), at_once=True)
        self._update()

    def _fail(
        self,
        scope: str,
        error: dict[str, Any],
        kinds: tuple[str, ...],
        *,
        at_once: bool = False,
    ) -> None:
        """Fail a scope with an error: at once, or when its open calls are answered.

        Nothing of it is begun any more. Of the errors that it has then, the first one counts.
        """
        state = self.state
        assert state is not None
        if scope == _INSTANCE:
            state["errors"].append(error)
            self._fit_errors()
        elif "error" not in self._scopes[scope]:
            kept = {"msg": error["msg"][:_KEPT_TEXT], "trace": "", "kinds": list(kinds)}
            self._scopes[scope]["error"] = {**error, **kept}
            self._grown += len(to_json(self._scopes[scope]["error"]))
        if self._phase(scope) is ScopePhase.OPEN:
            self._enter(scope, ScopePhase.FAILING)
            self._withdraw(scope)
        if at_once or state["policy"] == FailurePolicy.FAIL_FAST.value:
            self._cancel_open(_body(scope))
        self._settle(scope)

    def _fit_errors(self) -> None:
        assert self.state is not None
        _fit(self.state["errors"], self._rules.max_row // FREE * 3 // 4)

    def _withdraw(self, scope: str) -> None:
        """Withdraw what is to be begun in a scope; what is to be undone goes on."""
        state = self.state
        assert state is not None
        for ref in [each for each in self._waiting if _is_in_scope(scope, each)]:
            if self._undo_record(ref) is None:
                del self._waiting[ref]
                self._own_errors.pop(ref, None)
                state.get("undo_of", {}).pop(ref, None)
        for noted in (state.get("pauses", {}), self._scopes):
            for each in [each for each in noted if each != scope and _is_in_scope(scope, each)]:
                gone = noted.pop(each)
                if noted is self._scopes and gone.get("not_undone"):
                    self._say_not_undone(scope, gone["error"]["ref"], gone["error"]["msg"])
        if scope == _INSTANCE:  # arguments and results give way to errors
            state["own_errors"], state["signals"], state["pauses"] = {}, {}, {}
            state["args"], state["returns"] = None, dict.fromkeys(state["returns"])
            return
        for noted in (state["returns"], state["loops"], state["choices"]):
            for each in [each for each in noted if _is_in_scope(scope, each)]:
                del noted[each]

    def _settle(self, scope: str) -> None:
        """Advance a scope that fails, unless it waits for calls.

        Then its done calls are undone, the last one first and one at a time; then a Try is over, or
        the instance, with its first error.
        """
        state = self.state
        assert state is not None
        if any(_is_in_scope(scope, ref) for ref in (*state["called"], *self._waiting)):
            return
        record = next(
            (each for each in reversed(state.get("undos", [])) if _is_in_scope(scope, each[0])),
            None,
        )
        if record is not None:
            if self._phase(scope) is ScopePhase.FAILING:
                self._enter(scope, ScopePhase.UNDOING)
                self._event(EVENT_UNDO, ref=scope or ROOT)
            self._open_undo(record)
        elif scope == _INSTANCE:
            error = state["errors"][0]
            members = {name: error[name] for name in _OUTCOME_MEMBERS if name in error}
            self._close_instance(error["type"], **members)
        else:
            self._leave(scope)

    def _leave(self, scope: str) -> None:
        """Leave a Try whose body has failed: for the term that takes it, or for what is around."""
        assert self.state is not None
        own = self._scopes[scope]
        error, catches = own["error"], own.get("catches", [])
        kinds = error.pop("kinds")
        taken = "catches" in own and (not catches or any(each in catches for each in kinds))
        if not taken or own.get("not_undone"):
            del self._scopes[scope]
            self._fail(self._scope_of(scope), error, tuple(kinds))
            return
        self._enter(scope, ScopePhase.CATCHING)
        said = {"ref": error["ref"], "msg": error["msg"], "kinds": kinds}
        self.state["returns"][f"{scope}.{ERROR}"] = said
        self._event(EVENT_CATCH, ref=scope, error=said)
        self._advance()

    def _cancel_open(self, part: str) -> None:
        """Cancel the open calls of what is at a path, but for those that undo others."""
        state = self.state
        assert state is not None
        for ref, (attempt, *_) in sorted(state["called"].items()):
            if _is_part(part, ref) and self._undo_record(ref) is None:
                self._cancel(ref, attempt)
                self._count_ended("cancelled")
                del state["called"][ref]
                state.get("undo_of", {}).pop(ref, None)

    def _cancel(self, ref: str, attempt: int) -> None:
        document = {"type": CANCEL, "instance": self._key, "ref": ref, "attempt": attempt}
        self._put_output(ASSIGNMENTS, document, (self._key, ref, attempt))

    # --- what is undone ---------------------------------------------------------------------

    def _note_undo(self, ref: str, result: Any) -> Refusal | None:
        """Record what undoes a call that has returned; return why that cannot be."""
        state = self.state
        assert state is not None
        undo = state.get("undo_of", {}).pop(ref, None)
        if undo is None:
            return None
        args = undo_args(undo, result, ref)
        if isinstance(args, Refusal):
            refusal: Refusal | None = args
        else:
            record = [ref, undo[0], args, *undo[2:]]
            refusal = self._record_refusal(record)
            if refusal is None:
                state.setdefault("undos", []).append(record)
                return None
        assert refusal is not None
        said = f"{ref} was not undone: {refusal.text}"
        self._count_undos("not_undone", 1)
        self._say_not_undone(self._scope_of(ref), f"{ref}{_UNDO}", said)
        return Refusal(ref, said)

    def _record_refusal(self, record: list[Any]) -> Refusal | None:
        """Return why there is no room for what undoes a call, None if there is."""
        state, most = self.state, self._rules.state_room
        assert state is not None
        ref, _, args, *_ = record
        before = self._grown
        refusal = self._refusal(ref, "what undoes it is called with", args)
        self._grown = before
        if refusal is not None:
            return refusal
        size = state.get("size", most) + len(to_json(record))
        if size + before > most:  # it was never so large: find out how large it is now
            found = _size_of(ref, "the state with what undoes it", [state, record], most)
            if isinstance(found, Refusal):
                return found
            size = found
        state["size"] = size
        return None

    def _say_not_undone(self, scope: str, ref: str, said: str, trace: str = "") -> None:
        """Add to the errors of a scope that a call in it was not undone: none takes them then."""
        assert self.state is not None
        if scope != _INSTANCE:
            own = self._scopes[scope]
            own["not_undone"] = True
            if "error" in own:
                own["error"]["msg"] = f"{own['error']['msg']}; {said}"[:_TEXT]
        elif self._phase(_INSTANCE) is not ScopePhase.OPEN:  # else it is about to fail by it
            error = {"type": EXCEPTIONS, "ref": ref, "attempt": 0, "msg": said, "trace": trace}
            self.state["errors"].append(error)
            self._fit_errors()

    def _undo_record(self, ref: str) -> list[Any] | None:
        """Return what a path is the undoing call of, None if it is none."""
        if self.state is None or not ref.endswith(_UNDO):
            return None
        of = ref.removesuffix(_UNDO)
        return next((each for each in self.state.get("undos", []) if each[0] == of), None)

    def _open_undo(self, record: list[Any]) -> None:
        path, process, args, *limits = record
        self._open_call(f"{path}{_UNDO}", ["call", process, {}, *limits], args)

    def _undo_over(self, ref: str, how: str, text: str = "", trace: str = "") -> None:
        """Count what became of an undoing call, and go on with the next."""
        state = self.state
        assert state is not None
        record = self._undo_record(ref)
        state["undos"].remove(record)
        self._count_undos(how, 1)
        scope = self._scope_of(ref)
        if how == "not_undone":
            said = f"{ref.removesuffix(_UNDO)} was not undone: {text}"
            self._say_not_undone(scope, ref, said, trace)
        self._settle(scope)

    def _count_undos(self, how: str, count: int) -> None:
        assert self.state is not None
        if count:
            self.state[how] = self.state.get(how, 0) + count

    # --- the term ---------------------------------------------------------------------------

    def _advance(self, at: str = ROOT) -> None:
        """Start all that the term has come to, or close the instance.

        ``at`` is the call whose answer has led here. What a pass leads to is looked at in the next
        one, not within it: there may be as many as a list has items.
        """
        self._to_advance = [at]
        if self._is_advancing:
            return
        self._is_advancing, iterations = True, 0
        while self._to_advance and self._phase(_INSTANCE) is ScopePhase.OPEN:
            iterations = self._pass(self._to_advance.pop(), iterations)
        self._is_advancing = False

    def _pass(self, at: str, iterations: int) -> int:
        """Start all that one pass comes to; return how many iterations have ended by now."""
        state = self.state
        assert state is not None
        run = TermPass(state, self._now, iterations)
        result = run.result()
        for path, signal, due in run.paused:
            self._event(EVENT_WAIT, ref=path, signal=signal, due=due)
        for path, value in run.resumed:
            self._event(EVENT_RESUME, ref=path, res=value)
        if result is not OPEN:
            refusal = _refused(_size_of(at, "the result", result, self._rules.value_room))
            if refusal is None:
                self._close_instance(EVENT_RESULT, result=result)
            else:
                self._refuse(refusal)
        else:
            self._begin(run, at)
        return run.iterations

    def _begin(self, run: TermPass, at: str) -> None:
        """Make the calls that a pass has come to, but for those of scopes that fail by it."""
        refusals = list(run.refusals)
        most = self._rules.value_room
        for path, _, args, undo in run.opened:
            size = _size_of(path, "what it is called with", [args, undo] if undo else args, most)
            refusals += [size] if isinstance(size, Refusal) else []
        full = self._overflow(run, at)
        if full is not None:
            error = {"type": full.kind, "ref": at, "attempt": 0, "msg": full.text, "trace": ""}
            self._fail(_INSTANCE, error, full.kinds)
            return
        failing = {self._scope_of(each.path) for each in refusals}
        for each in run.opened:
            if not any(_is_in_scope(scope, each.path) for scope in failing):
                self._open(each)
        for refusal in refusals:
            if self._phase(_INSTANCE) is ScopePhase.OPEN and self._is_open(refusal.path):
                self._refuse(refusal)

    def _overflow(self, run: TermPass, at: str) -> Refusal | None:
        """Return why the instance would be too large, None if it is not."""
        state, most = self.state, self._rules.state_room
        assert state is not None
        opened = sum(
            len(each.path) + _CALL_SIZE + (len(to_json(each.undo)) if each.undo else 0)
            for each in run.opened
        )
        paused = sum(len(path) + _CALL_SIZE for path, *_ in run.paused)
        resumed = sum(len(path) + len(to_json(value)) for path, value in run.resumed)
        grown = self._grown + len(at) + opened + paused + resumed
        state["size"] = state.get("size", most) + grown
        self._grown = 0
        if state["size"] <= most:
            return None
        # it was never so large: find out how large it is now
        size = _size_of(at, "the instance's state", state, most, opened)
        state["size"] = most if isinstance(size, Refusal) else size
        return _refused(size)

    def _open(self, opened: Opened) -> None:
        assert self.state is not None
        if opened.undo is not None:
            self.state.setdefault("undo_of", {})[opened.path] = opened.undo
        self._open_call(opened.path, opened.call, opened.args)

    def _open_call(self, ref: str, call: list[Any], args: dict[str, Any]) -> None:
        state = self.state
        assert state is not None
        _, process, _, most, timeout, *backoff = call[:6]
        attempt = self._attempts.pop(ref, 0) + 1
        retries = extras_of(call).get("retries")
        limits = [*backoff, retries] if retries else backoff
        state["called"][ref] = [attempt, self._now + timeout, most, *limits]
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
        counted = ("undone", "not_undone")
        undone: dict[str, Any] = {name: state[name] for name in counted if name in state}
        self._event(kind, **members)
        outcome: dict[str, Any] = {
            "type": kind,
            "instance": self._key,
            "definition": state["definition"],
            **members,
            **undone,
            "started": state["started"],
            "ended": self._now,
            "calls": state["calls"],
            "errors": state["errors"],
        }
        self._put_output(OUTCOMES, outcome)
        self._enter(_INSTANCE, ScopePhase.CLOSED)
        kept: dict[str, Any] = {n: each for n, each in state.items() if n not in _OPEN_MEMBERS}
        self.state = kept | {
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


def _body(scope: str) -> str:
    """Return the path of what a scope has around it."""
    return ROOT if scope == _INSTANCE else f"{scope}.{BODY}"


def _is_in_scope(scope: str, path: str) -> bool:
    """Return whether what is at a path is in a scope's body."""
    return _is_part(_body(scope), path)


def _is_part(whole: str, path: str) -> bool:
    """Return whether what is at a path is a part of what is at another one, or that itself."""
    return path == whole or path.startswith((f"{whole}.", f"{whole}["))


def _kinds_of(kinds: object) -> tuple[str, ...]:
    """Return the names of an error's kinds, as an answer has them, up to a limit."""
    if not isinstance(kinds, list):  # a former version's worker does not say
        return ()
    return tuple(_writable(each)[:_KIND_TEXT] for each in kinds[:_MOST_KINDS])
