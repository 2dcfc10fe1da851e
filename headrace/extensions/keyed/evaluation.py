"""One key on its way through a micro-batch: facts, timers, time to live and rejects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.core.letter_headers import Stage
from headrace.core.records import TopicPartition
from headrace.core.user_text import plain_error, plain_text
from headrace.extensions.keyed.api import Event, Fired, Timer, TimerClock
from headrace.extensions.keyed.codecs import why_unread
from headrace.extensions.keyed.errors import PoisonError
from headrace.extensions.keyed.facts import IN_TIME, TOO_LATE
from headrace.extensions.keyed.poison import letter_of, refusal_of
from headrace.extensions.keyed.results import Folded
from headrace.extensions.keyed.row import TTL, KeyRow
from headrace.extensions.keyed.tables import Fact, header_pairs
from headrace.extensions.keyed.timers import MAX_TIMERS, checked_timers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.core.call_watch import CallWatch
    from headrace.extensions.keyed.reduction import Reduction
    from headrace.extensions.keyed.tables import OutputRow, Touched

#: Timers of event time that fire for one key after its last record of a micro-batch; those that are
#: left fire in the next one. Before a record all fire that are due.
MAX_FIRED = 10_000

#: Timers of one key that fire one after the other without any of them being later than those
#: before: more are set again and again for a time that has passed.
MAX_FIRED_AGAIN = 10 * MAX_TIMERS

#: Characters of the reason that is stored with a key that is set aside, at most and at least.
_REASON_LENGTH, _LEAST_REASON = 1000, 100

#: What says of a value, a state or a key that it cannot be read or written. Values nested too
#: deeply for the interpreter are among them.
_UNREADABLE = (TypeError, ValueError, RecursionError)


class Begun(NamedTuple):
    """A plain key up to the fact whose call set timers, the last of the ``done`` ones.

    From there on it is not plain: see :meth:`KeyEvaluation.go_on`.
    """

    name: Any
    state: Any
    outputs: list[OutputRow]
    timers: Mapping[str, Timer]
    done: int


def reduce_plain(
    reduction: Reduction, key: bytes, stored: bytes | None, events: list[Event[Any]], now: int
) -> tuple[bytes | None, list[OutputRow]] | Begun:
    """Return state and outputs of a key that ``facts.plain_keys`` says is plain, once reduced.

    Most keys are so. There is nothing to do but to call the reducer, so that it is done in few
    steps; they are those of :class:`KeyEvaluation` where nothing is due, and nothing fails. What
    fails is raised as it is: then the key is to be evaluated from its beginning.
    """
    name = reduction.read_key(key)
    state = None if stored is None else reduction.read_state(stored)
    outputs: list[OutputRow] = []
    done, call = 0, reduction.call
    for facts in [events] if reduction.is_batched else map(list, zip(events, strict=True)):
        state, made, timers = call(key, name, state, facts, now, facts[-1].ts)
        outputs += made
        done += len(facts)
        if timers:
            return Begun(name, state, outputs, timers, done)
    data = None if state is None else reduction.write_state(state)
    if data is not None:
        reduction.require_row(key, data, None)
    return data, outputs


class KeyEvaluation:
    """One key on its way through a micro-batch.

    What a reducer did to its state before it failed cannot be undone. So a key is evaluated once
    without care, which raises a :class:`PoisonError` where anything fails; and then again, from
    what is stored, with care: facts come one at a time, the state is written after each call, to be
    read again where the next one fails, and each failure is dealt with as the settings say.
    """

    def __init__(
        self,
        reduction: Reduction,
        touched: Touched,
        *,
        is_careful: bool,
        calls: CallWatch | None = None,
    ) -> None:
        self._reduction = reduction
        self._settings = reduction.settings
        self._touched = touched
        self._is_careful = is_careful
        self._calls = calls if is_careful else None
        row = touched.row
        self._state: Any = None
        self._name: Any = touched.key
        timers, self._quarantined = row.read_extra()
        self._timers = {name: timer for name, timer in timers.items() if name != TTL}
        self._ttl = timers[TTL].due if TTL in timers else None
        self._unreadable: str | None = None
        self._is_called = False
        self._result = Folded(row)
        #: The state as it is stored, and after each call of a careful run.
        self._stored = row.state
        self._latest_fired: int | None = None
        self._fired_again = 0
        self._due = self._next_due() if timers else None

    def run(self) -> Folded:
        """Return what became of the key.

        Raises:
            PoisonError: something failed, and this is no careful run.
            PoisonRecordError, RetryableError: ``failing`` is ``fail``, in a careful one.
        """
        touched = self._touched
        self._open_state()
        if touched.events is not None and self._sees_facts_as_they_are():
            self._result.late = touched.late
            return self._finish(zip(touched.facts, touched.events, strict=True))
        return self._finish((fact, None) for fact in touched.facts)

    def go_on(self, begun: Begun) -> Folded:
        """Return what became of a key that was plain at first. For no careful run.

        Raises:
            PoisonError: something failed.
        """
        touched = self._touched
        assert touched.events is not None, "a plain key has its events"
        self._name, self._state = begun.name, begun.state
        self._result.late, self._result.outputs = touched.late, begun.outputs
        self._is_called = True
        try:
            self._timers = self._check_timers(begun.timers, touched.facts[begun.done - 1])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of what a reducer returned
            raise PoisonError(plain_error(error)) from None
        self._due = self._next_due()
        facts, events = touched.facts[begun.done :], touched.events[begun.done :]
        return self._finish(zip(facts, events, strict=True))

    def _finish(self, facts: Iterable[tuple[Fact, Event[Any] | None]]) -> Folded:
        """Reduce facts, and what is due after them."""
        until = self._touched.until
        if self._reduction.is_batched and not self._is_careful:
            self._take_batched(facts)
        else:
            for fact, ready in facts:
                if self._due is not None:
                    self._fire_until(fact.time)
                event = ready or self._event_of(fact)
                if event is not None:
                    self._call([event], fact)
        if until is not None:
            self._fire_until(until, MAX_FIRED)
        self._fire_clock()
        if self._is_called:
            self._close_row()
        return self._result

    def _sees_facts_as_they_are(self) -> bool:
        """Return whether nothing is to be said of a fact before the reducer gets it."""
        return not self._is_careful and self._quarantined is None and self._unreadable is None

    # --- the state --------------------------------------------------------------------------

    def _open_state(self) -> None:
        """Decode key and state."""
        state = self._touched.row.state
        try:
            self._name = self._reduction.read_key(self._touched.key)
            if state is not None:
                self._state = self._reduction.read_state(state)
        except _UNREADABLE as error:
            self._unreadable = f"the key or its state cannot be read: {error}"

    def _close_row(self) -> None:
        """Make the row that is stored."""
        state = self._stored
        if not self._is_careful and self._unreadable is None:
            try:
                state = None if self._state is None else self._reduction.write_state(self._state)
                row = self._row(state, self._timers, self._ttl)
                self._require(row)
            except _UNREADABLE as error:
                raise PoisonError(plain_error(error)) from None
        else:
            row = self._row(state, self._timers, self._ttl)
        if self._quarantined is not None:
            reason = self._stored_reason(row, self._quarantined)
            row = self._row(state, self._timers, self._ttl, reason)
        self._result.row = row

    def _require(self, row: KeyRow) -> None:
        self._reduction.require_row(self._touched.key, row.state, row.extra)

    def _row(
        self,
        state: bytes | None,
        timers: Mapping[str, Timer],
        ttl: int | None,
        quarantined: str | None = None,
    ) -> KeyRow:
        """Return what is stored of the key, with its end as a timer."""
        if self._settings.ttl is not None and ttl is not None and (state is not None or timers):
            timers = {**timers, TTL: Timer(ttl)}
        return KeyRow.of(state, timers, quarantined)

    def _stored_reason(self, row: KeyRow, reason: str) -> str:
        """Return why the key is set aside, in as many words as its row has room for."""
        sizes = (len(data or b"") for data in (self._touched.key, row.state, row.extra))
        room = (self._settings.max_row - sum(sizes)) // 6  # bytes of a character in JSON, at most
        return plain_text(reason, min(_REASON_LENGTH, max(_LEAST_REASON, room)))

    # --- facts ------------------------------------------------------------------------------

    def _event_of(self, fact: Fact) -> Event[Any] | None:
        """Return a fact as the reducer is to see it, None where it is not to."""
        if self._quarantined is not None:
            self._refuse_quarantined(fact)
            return None
        is_late = fact.lateness != IN_TIME
        self._result.late += is_late
        if fact.lateness == TOO_LATE:
            self._refuse_late(fact)
            return None
        if self._unreadable is not None:
            self._give_up(fact, self._unreadable)
            return None
        if self._calls is not None and self._hangs(fact, self._calls):
            return None
        try:
            value = None if fact.value is None else self._reduction.read(fact)
        except _UNREADABLE as error:
            raised = why_unread(
                error,
                fact.value or b"",
                is_own=self._settings.decoder is not None,
                is_framed=self._settings.framed is not None,
            )
            self._give_up(fact, raised, Stage.VALUE)
            return None
        partition, headers = self._touched.partition, header_pairs(fact.headers)
        return Event(value, fact.ts, fact.source, partition, fact.offset, headers, is_late)

    def _refuse_late(self, fact: Fact) -> None:
        """Handle a fact that is too late, as ``late`` says."""
        if self._settings.late == "dead_letter":
            grace = self._settings.grace
            self._reject(fact, f"it is late by {fact.late_by} ms, and grace is {grace} ms")
        else:
            self._result.dropped += 1

    def _take_batched(self, facts: Iterable[tuple[Fact, Event[Any] | None]]) -> None:
        """Call the reducer with all facts up to the next timer that is due."""
        waiting: list[Event[Any]] = []
        last, ttl = None, self._settings.ttl
        lives_until: int | None = None
        for fact, ready in facts:
            # the key may end between what waits and this one: that is known once it is reduced
            ends = any(due is not None and due <= fact.time for due in (self._due, lives_until))
            if last is not None and ends:
                self._call(waiting, last)
                waiting, last, lives_until = [], None, None
            if self._due is not None:
                self._fire_until(fact.time)
            event = ready or self._event_of(fact)
            if event is not None:
                waiting.append(event)
                last = fact
                if ttl is not None:
                    own = event.ts + ttl
                    lives_until = own if lives_until is None else max(lives_until, own)
        if last is not None:
            self._call(waiting, last)

    # --- timers -----------------------------------------------------------------------------

    def _next_due(self) -> int | None:
        """Return when the first timer of event time is due, or the key at its end."""
        if self._quarantined is not None:
            return None
        due = [timer.due for timer in self._timers.values() if timer.clock is TimerClock.EVENT]
        if self._ttl is not None and self._settings.ttl is not None:
            due.append(self._ttl)
        return min(due, default=None)

    def _fire_until(self, time: int, most: int | None = None) -> None:
        """Fire timers of event time that are due, in the order of due and name.

        Those beyond ``most`` are left for the next micro-batch. A key is at its end after what is
        due at the same time.
        """
        fired = 0
        while self._due is not None and self._due <= time and fired != most:
            due = [
                (timer.due, name)
                for name, timer in self._timers.items()
                if timer.clock is TimerClock.EVENT and timer.due == self._due
            ]
            if due:
                at, name = min(due)
                self._fire(Fired(name, at))
                fired += 1
            else:
                self._expire()

    def _fire_clock(self) -> None:
        """Fire timers of the wall clock that are due, each once: missed ones collapse."""
        due = sorted(
            (timer.due, name)
            for name, timer in self._timers.items()
            if timer.clock is TimerClock.CLOCK and timer.due <= self._touched.now
        )
        for at, name in due:
            is_set = self._timers.get(name) == Timer(at, TimerClock.CLOCK)
            if is_set and self._quarantined is None:
                self._fire(Fired(name, at, TimerClock.CLOCK))

    def _fire(self, fired: Fired) -> None:
        """Call the reducer with a timer, which is no longer set.

        Keys without records come from ``rows._due_keys``, those of quiet partitions from
        ``runtime.ticks.Ticks``.
        """
        del self._timers[fired.name]
        self._is_called = True
        self._result.fired += 1
        if fired.clock is TimerClock.EVENT and self._count_fired_at(fired.due) > MAX_FIRED_AGAIN:
            self._give_up(
                fired,
                f"{MAX_FIRED_AGAIN} timers fired at {fired.due} or before; the reducer sets timers "
                "again that are due by then",
            )
        elif self._unreadable is not None:
            self._give_up(fired, self._unreadable)
        else:
            self._call([fired], fired)
        self._due = self._next_due()

    def _count_fired_at(self, due: int) -> int:
        """Return how many timers fired in a row without being later than those before."""
        if self._latest_fired is None or due > self._latest_fired:
            self._latest_fired, self._fired_again = due, 0
        self._fired_again += 1
        return self._fired_again

    def _expire(self) -> None:
        """Delete a key that had no fact for its time to live."""
        self._state, self._stored, self._timers = None, None, {}
        self._ttl, self._due = None, None
        self._is_called = True
        self._result.expired += 1

    # --- the call ---------------------------------------------------------------------------

    def _call(self, facts: list[Any], last: Fact | Fired) -> None:
        """Call the reducer, and take over what it returned."""
        self._is_called = True
        if self._calls is not None and self._hangs(last, self._calls):
            return
        reduction, key, before = self._reduction, self._touched.key, self._stored
        ts = last.due if isinstance(last, Fired) else last.ts
        try:
            state, outputs, timers = reduction.call(
                key, self._name, self._state, facts, self._touched.now, ts
            )
            wanted = self._check_timers(timers, last) if timers else {}
            ttl = self._lives_until(facts) if isinstance(last, Fact) else self._ttl
            if self._is_careful:
                stored = None if state is None else reduction.write_state(state)
                self._require(self._row(stored, wanted, ttl))
                self._stored = stored
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a reducer's, or for what it returned
            if self._is_careful:
                self._state = None if before is None else reduction.read_state(before)
            self._give_up(last, plain_error(error))
            return
        self._state = state
        self._result.outputs += outputs
        self._timers = wanted
        self._ttl = ttl
        if state is None and not wanted:
            self._ttl = None
        self._due = self._next_due() if wanted or self._ttl is not None else None

    def _check_timers(self, timers: Mapping[str, Timer], last: Fact | Fired) -> dict[str, Timer]:
        """Return the timers that a reducer wants, if they can be set."""
        may_be_event = isinstance(last, Fired) or not self._reduction.is_batched
        return checked_timers(timers, may_be_event=may_be_event)

    def _lives_until(self, facts: Sequence[Event[Any]]) -> int | None:
        """Return when the key ends after facts, None where keys have no time to live."""
        if self._settings.ttl is None:
            return self._ttl
        return max(self._ttl or 0, max(fact.ts for fact in facts) + self._settings.ttl)

    def _hangs(self, last: Fact | Fired, calls: CallWatch) -> bool:
        """Record the call for one fact or timer; if it hung before, give that up instead."""
        key, partition = self._touched.key, self._touched.partition
        place = (
            f"timer {last.name!r}"
            if isinstance(last, Fired)
            else f"offset {last.offset} of {TopicPartition(last.source, partition)}"
        )
        if calls.has_hung(partition, key, place):
            self._give_up(
                last,
                f"the reducer does not return when it is called with {place}, or ends its process",
            )
            return True
        calls.call(partition, key, place.encode())
        return False

    # --- rejects ----------------------------------------------------------------------------

    def _give_up(
        self, last: Fact | Fired, reason: BaseException | str, stage: Stage = Stage.PROCESS
    ) -> None:
        """Handle what cannot be read or reduced, as the settings say."""
        error = PoisonError(reason)
        if not self._is_careful:
            raise error
        settings = self._settings
        policy = settings.unreadable if stage is Stage.VALUE else settings.failing
        if policy == "fail":
            raise refusal_of(self._touched, last, str(error)) from (
                reason if isinstance(reason, BaseException) else None
            )
        if policy == "skip":
            self._result.reject(str(error))
        else:
            self._reject(last, str(error), reason, stage)
        if policy == "quarantine":
            self._is_called = True
            self._quarantined = str(error)
            if isinstance(last, Fired):
                self._timers[last.name] = Timer(last.due, last.clock)
            self._due = None  # timers stay until the key is released

    def _refuse_quarantined(self, fact: Fact) -> None:
        """Handle a fact of a key that is quarantined, by whatever policy that was."""
        reason = f"the key is quarantined: {self._quarantined}"
        policies = {self._settings.undecodable, self._settings.failing}
        if policies & {"dead_letter", "quarantine"}:
            self._reject(fact, reason)
        else:  # there need not be a topic for it
            self._give_up(fact, f"{reason}; headrace state release has it go on")

    def _reject(
        self,
        last: Fact | Fired,
        message: str,
        reason: BaseException | str | None = None,
        stage: Stage = Stage.PROCESS,
    ) -> None:
        """Make a dead letter of a fact or a timer."""
        self._result.reject(message)
        letter = letter_of(self._reduction, self._touched, last, message, reason, stage)
        self._result.outputs.append(letter)
