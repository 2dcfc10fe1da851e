from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinators.lease import (
    HEARTBEAT_SHARE,
    MARGIN,
    REPORT_SHARE,
    SILENCE_SHARE,
    Lease,
)
from headrace.testing.channel import FakeClock

SESSION = 12.0
BEAT = SESSION * HEARTBEAT_SHARE
USABLE = SESSION * (1 - MARGIN)


class Ensemble:
    """A follower that hears us, and a leader that counts the session from what it is told.

    The client pings every ``silence`` seconds; each request takes ``delay`` to the follower, which
    the leader asks every half ``tick``, first at ``asks``.
    """

    def __init__(self, tick: float, asks: float, silence: float, delay: float) -> None:
        self._half_tick = tick / 2
        self._asks = asks
        self._silence = silence
        self._ping = silence + delay
        self._heard = False
        self.counted_from = 0.0

    def run(self, until: float) -> None:
        """Let pings come in and the leader ask."""
        while min(self._asks, self._ping) <= until:
            if self._ping < self._asks:
                self._heard = True
                self._ping += self._silence
            else:
                self.counted_from = self._asks if self._heard else self.counted_from
                self._heard = False
                self._asks += self._half_tick

    def hear(self, arrival: float) -> None:
        """Deliver a heartbeat."""
        self.run(arrival)
        self._heard = True

    @property
    def expires(self) -> float:
        """When the leader ends the session, if the follower stops now."""
        return self.counted_from + SESSION


def test_a_lease_ends_a_margin_before_the_session() -> None:
    """The end is the time from which the session is counted and its time-out, less a tenth."""
    clock = FakeClock(100)
    lease = Lease(10, clock, 98)
    assert lease.remaining() == 7
    clock.advance(6.9)
    assert lease.valid()
    clock.advance(0.2)
    assert not lease.valid()
    assert lease.remaining() == 0


def test_a_first_write_counts_from_the_connect_while_that_is_fresh() -> None:
    """A server that lets us in tells the leader at once, which no acknowledgement does."""
    clock = FakeClock(100)
    assert Lease.begin(SESSION, clock, 100, 99).remaining() == pytest.approx(USABLE - 1)


@pytest.mark.parametrize("connected_at", [-inf, 50.0, 101.0])
def test_a_first_write_in_an_old_session_counts_from_the_pings(connected_at: float) -> None:
    """It proves no more than that the client pinged; a connect after it proves nothing for it."""
    clock = FakeClock(100)
    left = Lease.begin(SESSION, clock, 100, connected_at).remaining()
    assert left == pytest.approx(USABLE - (REPORT_SHARE + SILENCE_SHARE) * SESSION)
    assert left > BEAT


def test_a_heartbeat_counts_once_a_later_one_is_acknowledged() -> None:
    """The lease counts from the newest that the leader was told of before the last one's answer."""
    clock = FakeClock(100)
    lease = Lease.begin(SESSION, clock, 100, 100)
    for beat in range(1, 6):
        clock.advance(BEAT)
        assert lease.confirm(clock.monotonic(), SESSION, 100)
        counted_from = 100 + max(0, beat - 2) * BEAT
        assert lease.remaining() == pytest.approx(counted_from + USABLE - clock.monotonic())


def test_an_answer_that_was_slow_counts_later() -> None:
    """The time of the answer counts, as a slow request may have arrived late."""
    clock = FakeClock(100)
    lease = Lease.begin(SESSION, clock, 100, 100)
    clock.advance(BEAT)
    sent = clock.monotonic()
    clock.advance(BEAT)
    assert lease.confirm(sent, SESSION, 100)
    clock.advance(BEAT)
    before = lease.remaining()
    assert lease.confirm(clock.monotonic(), SESSION, 100)
    assert lease.remaining() == pytest.approx(before)


def test_the_time_out_that_is_agreed_on_now_counts() -> None:
    """A server that grants a shorter session at a reconnect shortens the lease."""
    clock = FakeClock(100)
    lease = Lease.begin(SESSION, clock, 100, 100)
    clock.advance(1)
    assert lease.confirm(101, SESSION / 2, 101)
    assert lease.remaining() == pytest.approx(USABLE / 2)


def test_a_reconnect_that_grants_less_shortens_a_lease_at_once() -> None:
    """No heartbeat of the new connection has to be acknowledged for that."""
    clock = FakeClock(100)
    lease = Lease.begin(SESSION, clock, 100, 100)
    clock.advance(SESSION / 2)
    lease.reconnected(SESSION / 4, clock.monotonic())
    assert lease.remaining() == pytest.approx(USABLE / 4)
    clock.advance(SESSION / 4)
    assert lease.ended()


@pytest.mark.parametrize(("granted", "connected_at"), [(1, 200), (2, 200), (0.9, 129), (1, 100)])
def test_a_reconnect_never_extends_a_lease(granted: float, connected_at: float) -> None:
    """Only what is acknowledged to a member of the group does."""
    clock = FakeClock(100)
    lease = Lease.begin(SESSION, clock, 100, 100)
    clock.advance(1)
    before = lease.remaining()
    lease.reconnected(granted * SESSION, connected_at)
    assert lease.remaining() == pytest.approx(before)


def test_a_lease_that_ended_stays_ended() -> None:
    """An acknowledgement that comes after the end does not bring the lease back."""
    clock = FakeClock(100)
    lease = Lease(10, clock, 100)
    clock.advance(9.5)
    assert not lease.confirm(108, 10, 108)
    assert not lease.valid()


def test_a_broken_lease_allows_nothing() -> None:
    """Breaking ends the lease at once and for good."""
    clock = FakeClock(100)
    lease = Lease(10, clock, 100)
    lease.break_()
    assert not lease.valid()
    assert not lease.confirm(100, 10, 100)


@given(
    ticks=st.floats(2, 20),
    phase=st.floats(0, 1),
    silence=st.floats(0.3, 1),
    delay=st.floats(0, 0.02),
    beats=st.lists(st.floats(0.5, 1.5), min_size=1, max_size=12),
)
def test_a_lease_never_outlives_the_session_behind_a_follower(
    ticks: float, phase: float, silence: float, delay: float, beats: list[float]
) -> None:
    """Whenever the follower stops, the leader does not end the session before the lease ends."""
    clock = FakeClock(0)
    tick, way = SESSION / ticks, delay * SESSION
    ensemble = Ensemble(tick, phase * tick / 2, silence * SILENCE_SHARE * SESSION, way)
    lease = Lease.begin(SESSION, clock, 0, 0)
    sent = 0.0
    for beat in beats:
        sent += beat * BEAT
        arrival = sent + way
        ensemble.hear(arrival)
        clock.advance(arrival - clock.monotonic())
        assert lease.confirm(sent, SESSION, 0)
        assert arrival + lease.remaining() <= ensemble.expires


def test_a_lease_after_a_standstill_holds_from_the_first_pair_on() -> None:
    """No ping is taken for sent; meanwhile the lease does not hold, and has not ended either."""
    clock = FakeClock(100)
    lease = Lease.begin(SESSION, clock, 100, 50, pinged_since=100)
    for _ in range(2):
        assert (lease.valid(), lease.ended(), lease.remaining()) == (False, False, 0.0)
        clock.advance(BEAT)
        assert lease.confirm(clock.monotonic(), SESSION, 50)
    assert lease.remaining() == pytest.approx(USABLE - 2 * BEAT)
    clock.advance(USABLE)
    assert not lease.confirm(clock.monotonic(), SESSION, 50)
    assert lease.ended()


def test_a_connect_after_a_standstill_counts_at_once() -> None:
    """The server told the leader of it."""
    clock = FakeClock(100)
    lease = Lease.begin(SESSION, clock, 100, 99, pinged_since=100)
    assert lease.remaining() == pytest.approx(USABLE - 1)


@given(
    ticks=st.floats(2, 20),
    phase=st.floats(0, 1),
    frozen=st.floats(0.4, 0.99),
    delay=st.floats(0, 0.02),
    beats=st.lists(st.floats(0.5, 1.5), min_size=1, max_size=12),
)
def test_a_lease_after_a_standstill_never_outlives_the_session(
    ticks: float, phase: float, frozen: float, delay: float, beats: list[float]
) -> None:
    """The process was silent for most of a session, which lives on."""
    clock = FakeClock(0)
    tick, way = SESSION / ticks, delay * SESSION
    ensemble = Ensemble(tick, phase * tick / 2, inf, way)
    sent = frozen * SESSION
    lease: Lease | None = None
    for beat in [0.0, *beats]:
        sent += beat * BEAT
        arrival = sent + way
        ensemble.hear(arrival)
        clock.advance(arrival - clock.monotonic())
        if lease is None:
            lease = Lease.begin(SESSION, clock, sent, -inf, pinged_since=sent)
        else:
            assert lease.confirm(sent, SESSION, -inf)
        assert not lease.valid() or arrival + lease.remaining() <= ensemble.expires
