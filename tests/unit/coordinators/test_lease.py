from __future__ import annotations

from headrace.coordinators.lease import Lease
from headrace.testing.clock import FakeClock


def test_a_lease_ends_a_margin_before_the_session_counted_from_the_sending() -> None:
    """The end is the time of sending plus the session time-out less a tenth of it."""
    clock = FakeClock(100)
    lease = Lease(10, clock, sent_at=98)
    assert lease.remaining() == 7
    clock.advance(6.9)
    assert lease.valid()
    clock.advance(0.2)
    assert not lease.valid()
    assert lease.remaining() == 0


def test_a_confirmation_extends_the_lease_from_its_sending() -> None:
    """An acknowledged write counts from when it was sent, and an older one shortens nothing."""
    clock = FakeClock(100)
    lease = Lease(10, clock, sent_at=100)
    clock.advance(5)
    assert lease.confirm(sent_at=104)
    assert lease.remaining() == 8
    assert lease.confirm(sent_at=101)
    assert lease.remaining() == 8


def test_a_lease_that_ended_stays_ended() -> None:
    """An acknowledgement that comes after the end does not bring the lease back."""
    clock = FakeClock(100)
    lease = Lease(10, clock, sent_at=100)
    clock.advance(9.5)
    assert not lease.confirm(sent_at=108)
    assert not lease.valid()


def test_an_acknowledgement_of_an_old_write_may_be_too_old() -> None:
    """A write that was sent a whole session ago proves nothing now."""
    clock = FakeClock(100)
    lease = Lease(10, clock, sent_at=100)
    clock.advance(8)
    assert lease.confirm(sent_at=95)
    assert lease.remaining() == 1


def test_a_broken_lease_allows_nothing() -> None:
    """Breaking ends the lease at once and for good."""
    clock = FakeClock(100)
    lease = Lease(10, clock, sent_at=100)
    lease.break_()
    assert not lease.valid()
    assert not lease.confirm(sent_at=100)
