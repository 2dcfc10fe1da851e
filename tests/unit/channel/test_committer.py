"""The committer without its thread: what it stores, what it repairs, what it lets go."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest

from headrace.channel.commits import CHECK_INTERVAL, FRESH, REFRESH_INTERVAL, Committer
from headrace.channel.topics import KnownTopics
from headrace.config.subscription import Subscription
from headrace.core.clock import Deadline
from headrace.kafka.ports import CommitFailure, CommitRefusal, StoredOffset, TopicInfo
from headrace.telemetry.metrics import Metrics
from tests.metrics import value_of
from tests.unit.channel.in_memory import P0, P1

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.partition import OwnedPartition
    from headrace.kafka.ports import Commit
    from headrace.testing import FakeClock, InMemoryBroker
    from headrace.testing.broker import InMemoryOffsets


#: Longer than everything that the tests wait for: the claims' leases must last.
SESSION = 1_000_000.0


class Bench:
    """A committer with its store, and a broker that others commit to."""

    def __init__(self, broker: InMemoryBroker, clock: FakeClock) -> None:
        self.broker = broker
        self.clock = clock
        self.store: InMemoryOffsets = broker.store("group")
        self.metrics = Metrics()
        self.lost: list[tuple[OwnedPartition, CommitRefusal]] = []
        self.topics = KnownTopics(Subscription(("events",)))
        self.interval = 1.0
        self.committer = Committer(
            self.store,
            self.topics,
            interval=lambda: self.interval,
            touch=lambda _: None,
            lose=lambda owned, refusal: self.lost.append((owned, refusal)),
            metrics=self.metrics,
            channel="main",
            clock=clock,
            fail=_fail,
        )

    def commit(self, owned: OwnedPartition, offset: int) -> None:
        """Stage an offset and have it committed."""
        self.committer.enqueue(owned, offset)
        self.committer.run_once(flushed=True)

    def overwrite(self, stored: StoredOffset) -> None:
        """Commit for P0 as another writer would."""
        commits: dict[object, StoredOffset] = {P0: stored}
        self.broker.store("group").commit(commits, Deadline.after(1))  # type: ignore[arg-type]

    def later(self, seconds: float = CHECK_INTERVAL) -> None:
        """Let time pass and have the committer do what is due."""
        self.clock.advance(seconds)
        self.committer.run_once(flushed=False)

    def found(self, finding: str) -> float:
        """Return how often something was found."""
        counter = self.metrics.foreign_commits.labels("main", "events", finding)
        return value_of(counter)

    @property
    def stored(self) -> StoredOffset | None:
        """Return the stored offset of P0."""
        return self.broker.committed("group", P0)


def _fail(error: BaseException) -> NoReturn:
    raise error


@pytest.fixture
def bench(broker: InMemoryBroker, clock: FakeClock) -> Bench:
    """A committer that commits each second."""
    return Bench(broker, clock)


@pytest.fixture
def owned(own: Callable[..., OwnedPartition]) -> OwnedPartition:
    """P0 under epoch 1, with a lease that lasts."""
    return own(session_timeout=SESSION)


def test_a_turn_comes_when_a_commit_is_due(bench: Bench) -> None:
    """An interval that is no multiple of the looks at what is stored is kept all the same."""
    bench.interval = CHECK_INTERVAL + 3.0
    bench.committer.run_once(flushed=True)
    assert bench.committer.until_next_pass() == CHECK_INTERVAL
    bench.clock.advance(CHECK_INTERVAL)
    assert bench.committer.until_next_pass() == pytest.approx(3.0)
    bench.clock.advance(4.0)
    assert bench.committer.until_next_pass() == CHECK_INTERVAL


@pytest.mark.parametrize(
    ("foreign", "finding"),
    [
        (StoredOffset(3, 0, "by hand"), "foreign"),
        (StoredOffset(99, 0), "foreign"),
        (StoredOffset(7, 1), "late"),
    ],
)
def test_a_foreign_commit_is_found_and_mended(
    bench: Bench, owned: OwnedPartition, foreign: StoredOffset, finding: str
) -> None:
    """Backwards or forwards, it is counted once and the owner's offset stored again."""
    bench.commit(owned, 10)
    bench.overwrite(foreign)
    bench.later()
    assert bench.stored == StoredOffset(10, 1)
    assert bench.found(finding) == 1
    bench.later()
    assert bench.found(finding) == 1


def test_a_zombie_s_commit_is_found_and_mended(
    bench: Bench, own: Callable[..., OwnedPartition]
) -> None:
    """A commit of a lower epoch, before ours, goes away; the position never goes back."""
    owner = own(session_timeout=SESSION, epoch=4)
    bench.commit(owner, 10)
    bench.overwrite(StoredOffset(3, 2, "zombie"))
    bench.later()
    assert bench.stored == StoredOffset(10, 4)
    assert bench.found("stale") == 1
    assert not bench.lost


def test_a_commit_is_preceded_by_a_look(bench: Bench, owned: OwnedPartition) -> None:
    """A commit of another writer is found before our next one covers it."""
    bench.commit(owned, 10)
    bench.overwrite(StoredOffset(3, 0))
    bench.clock.advance(FRESH)
    bench.commit(owned, 20)
    assert bench.found("foreign") == 1
    assert bench.stored == StoredOffset(20, 1)


def test_a_higher_epoch_is_never_fought(bench: Bench, owned: OwnedPartition) -> None:
    """Staged commits are dropped, the partition is released, and nothing more is stored."""
    bench.commit(owned, 10)
    bench.overwrite(StoredOffset(12, 2, "successor"))
    bench.clock.advance(FRESH)
    bench.commit(owned, 20)
    assert bench.lost == [(owned, CommitRefusal.CLAIM)]
    bench.later(REFRESH_INTERVAL)
    assert bench.stored == StoredOffset(12, 2)
    assert bench.found("superseded") == 1


def test_no_offset_is_repaired_without_a_lease(
    bench: Bench, own: Callable[..., OwnedPartition]
) -> None:
    """A member whose lease is over does not overwrite a foreign commit."""
    owned = own(session_timeout=3.0)
    bench.commit(owned, 10)
    bench.overwrite(StoredOffset(3, 0))
    bench.later()
    assert bench.stored == StoredOffset(3, 0)


def test_an_offset_that_expired_is_stored_again(bench: Bench, owned: OwnedPartition) -> None:
    """A broker that forgot an idle partition's offset is told anew."""
    bench.commit(owned, 10)
    bench.broker.forget("group", P0)
    bench.later()
    assert bench.stored == StoredOffset(10, 1)
    assert bench.found("missing") == 1


def test_idle_offsets_are_stored_again_before_they_expire(
    bench: Bench, owned: OwnedPartition
) -> None:
    """An hour after the last commit the same offset is committed once more, and then again."""
    bench.commit(owned, 10)
    for times in (2, 3):
        bench.later(REFRESH_INTERVAL + 1)
        assert bench.broker.commits == [(P0, StoredOffset(10, 1))] * times
        bench.later()
        assert len(bench.broker.commits) == times


def test_a_late_commit_of_ours_is_mended(bench: Bench, owned: OwnedPartition) -> None:
    """A commit that timed out and is executed after a later one is found and mended."""
    bench.store.late = True
    bench.commit(owned, 10)
    bench.store.late = False
    bench.commit(owned, 20)
    bench.store.deliver_late()
    assert bench.stored == StoredOffset(10, 1)
    bench.later()
    assert bench.stored == StoredOffset(20, 1)
    assert bench.found("late") == 1


def test_a_missed_answer_is_no_foreign_commit(bench: Bench, owned: OwnedPartition) -> None:
    """A commit that timed out and was executed all the same is tried again, and is our own."""
    bench.commit(owned, 10)
    bench.store.late = True
    bench.commit(owned, 20)
    bench.store.late = False
    bench.store.deliver_late()
    bench.later()
    assert bench.stored == StoredOffset(20, 1)
    assert bench.found("late") == 0
    assert owned.pending_commits.has_pending_commit
    assert [event.offset for event in owned.events if hasattr(event, "offset")][-1] == 20


def test_a_reset_before_the_first_commit_stays(
    bench: Bench, own: Callable[..., OwnedPartition]
) -> None:
    """An offset that was stored before a claim's first commit is not repaired."""
    bench.overwrite(StoredOffset(3, 0, "reset"))
    bench.later()
    own(session_timeout=SESSION)
    bench.later()
    assert bench.stored == StoredOffset(3, 0)


def test_a_broker_that_is_down_only_postpones_the_look(
    bench: Bench, own: Callable[..., OwnedPartition]
) -> None:
    """Every partition is checked once the broker is back."""
    first, second = own(0, session_timeout=SESSION), own(1, session_timeout=SESSION)
    bench.commit(first, 10)
    bench.commit(second, 11)
    bench.overwrite(StoredOffset(3, 0))
    bench.broker.down = True
    bench.later()
    bench.broker.down = False
    bench.later()
    assert bench.stored == StoredOffset(10, 1)
    assert bench.broker.committed("group", P1) == StoredOffset(11, 1)
    assert bench.found("foreign") == 1


def test_a_refused_commit_loses_the_partition(
    bench: Bench, owned: OwnedPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that knows of a later claim is not asked again."""
    asked: list[Commit] = []

    def refuse(offsets: dict[object, Commit], _: Deadline) -> dict[object, object]:
        asked.extend(offsets.values())
        return dict.fromkeys(offsets, CommitFailure("claimed by b", CommitRefusal.CLAIM))

    monkeypatch.setattr(bench.store, "commit", refuse)
    bench.commit(owned, 10)
    bench.later()
    assert bench.lost == [(owned, CommitRefusal.CLAIM)]
    assert [(c.offset, c.epoch, c.by, c.node_version) for c in asked] == [(10, 1, "me", 1)]


def test_offsets_of_a_missing_topic_wait_for_the_topic(
    bench: Bench, own: Callable[..., OwnedPartition]
) -> None:
    """One of them would fail the whole commit, and none is repaired meanwhile."""
    owned, topic = own(0, SESSION), {"events": TopicInfo("events", "id-1", 2)}
    bench.topics.begin("cluster", topic, {"events": 2})
    bench.commit(owned, 5)
    bench.topics.take_in({})
    bench.broker.forget("group", P0)
    bench.later()
    bench.commit(owned, 6)
    assert bench.stored is None
    assert bench.found("missing") == 0
    bench.topics.take_in(topic)
    bench.later()
    assert bench.stored == StoredOffset(6, 1)


def test_a_commit_that_fails_for_a_missing_topic_has_the_topics_looked_at(
    bench: Bench, own: Callable[..., OwnedPartition]
) -> None:
    """Other failures do not."""
    owned = own(0, SESSION)
    bench.store.refuse = "no coordinator"
    bench.commit(owned, 5)
    assert not bench.topics.wanted.is_set()
    bench.store.refuse = None
    bench.broker.delete_topic("events")
    bench.commit(owned, 5)
    assert bench.topics.wanted.is_set()
    assert owned.pending_commits.has_pending_commit
