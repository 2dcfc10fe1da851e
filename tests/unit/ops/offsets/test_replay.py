"""Effects on a sink's output, before offsets are moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import ChannelConfig
from headrace.core.errors import HeadraceError
from headrace.core.positions import Replay
from headrace.core.records import TopicPartition
from headrace.kafka.ports import StoredOffset
from headrace.ops.offsets.plan import change_to
from headrace.ops.offsets.reader import PartitionOffsets
from headrace.ops.offsets.replay import ReplayRun, Settled
from headrace.sinks import OffsetMove, Replacement, ReplaceRefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.sinks import TransactionalOffsets

DELTA = {"type": "delta", "path": "table"}
SQL = {"type": "sql", "url": "sqlite:////base.db", "table": "t"}
UPSERT = {**SQL, "mode": "upsert", "key": ["id"]}
CUSTOM = {"type": "custom", "factory": "some.module:Sink"}
SEVERAL = {"type": "several", "outputs": {"rows": DELTA, "keys": UPSERT}}


class MovableOffsets:
    """A sink whose offsets can be moved, and no more."""

    def stored_offset(self, identity: str) -> int | None:
        """Return nothing: it is not asked."""
        raise AssertionError(identity)

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Refuse: nothing is moved here."""
        raise AssertionError((moves, note))


@dataclass
class Replacer(MovableOffsets):
    """A sink that says of every move what it is told to say."""

    offsets: dict[str, int] = field(default_factory=dict)
    refuses: Exception | None = None
    asked: list[OffsetMove] = field(default_factory=list)

    def plan_replace(self, moves: Sequence[OffsetMove]) -> Replacement:
        """Return what was asked for, with ``offsets`` in place of some of it."""
        self.asked += moves
        if self.refuses is not None:
            raise self.refuses
        return Replacement({each.identity: each.next_offset for each in moves} | self.offsets, 7)

    def replace(self, moves: Sequence[OffsetMove], note: str) -> int:
        """Refuse: nothing is moved here."""
        raise AssertionError((moves, note))


def at(number: int, sink: int | None) -> PartitionOffsets:
    """Return a partition in a log from 10 to 100 with the sink's offset."""
    partition = TopicPartition("events", number)
    stored = StoredOffset(90, 1)
    return PartitionOffsets(partition, f"c/g/t/{number}", 10, 100, stored, sink)


def settle(
    targets: Sequence[int],
    choice: Replay | None,
    sink_offsets: TransactionalOffsets | None,
    sink: Any = DELTA,
    stored: int | None = 50,
) -> Settled:
    """Settle a plan of one partition for each target, whose sink's offset is ``stored``."""
    processor = {"type": "spark", "reducer": "some.module:reduce"}
    channel = ChannelConfig.model_validate(
        {"topics": ["events"], "group": "g", "processor": processor, "sink": sink}
    )
    plan = tuple(change_to(at(number, stored), to) for number, to in enumerate(targets))
    return ReplayRun(channel, sink_offsets, choice, lambda identity: f"<{identity}>").settle(plan)


def test_a_move_back_takes_a_choice() -> None:
    """Without one it is refused, with both and what they do."""
    settled = settle([40], None, Replacer())
    assert settled.effect is None
    assert settled.refused is not None
    assert "--replay append keeps it (rows are appended again" in settled.refused
    assert "--replay replace removes it" in settled.refused


@pytest.mark.parametrize("target", [50, 60])
def test_a_move_forward_takes_none(target: int) -> None:
    """Nor does an offset that stays: nothing is read again."""
    assert settle([target], None, Replacer()).refused is None


def test_a_sink_without_an_offset_of_the_partition_takes_none() -> None:
    """It has nothing of it."""
    assert settle([40], None, Replacer(), stored=None).refused is None


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (DELTA, "rows are appended again, so that they are there twice"),
        (SQL, "rows are appended again, so that they are there twice"),
        (UPSERT, "rows are upserted again by their keys"),
        ({"type": "kafka", "topic": "out"}, "records are produced again"),
        (CUSTOM, "results go there again"),
        (
            SEVERAL,
            "output rows: rows are appended again, so that they are there twice; ",
        ),
    ],
)
def test_append_explains_the_repetition(sink: Any, said: str) -> None:
    """Each sink has its own sentence, with the requested offsets."""
    settled = settle([40], Replay.APPEND, MovableOffsets(), sink)
    assert settled.refused is None
    assert said in (settled.effect or "")
    assert [change.after for change in settled.plan] == [40]


@pytest.mark.parametrize(("sink", "is_said"), [("jsonl", True), ("noop", False)])
def test_a_sink_without_offsets_takes_no_choice(sink: str, is_said: bool) -> None:
    """The effect on its output is explained."""
    config = {"type": "jsonl", "path": "rows"} if sink == "jsonl" else sink
    settled = settle([40], None, None, config)
    assert (settled.refused, settled.effect is not None) == (None, is_said)


@pytest.mark.parametrize(
    ("sink", "sink_offsets", "said"),
    [
        (
            {"type": "kafka", "topic": "out"},
            MovableOffsets(),
            "cannot be taken back; replay with append",
        ),
        (SEVERAL, MovableOffsets(), "give each a channel of its own"),
        (CUSTOM, MovableOffsets(), "some.module:Sink has no plan_replace and replace"),
        (CUSTOM, None, "a sink of type custom keeps no offsets"),
        ({"type": "jsonl", "path": "rows"}, None, "a sink of type jsonl keeps no offsets"),
        ("console", None, "a sink of type console keeps no offsets"),
    ],
)
def test_sinks_that_cannot_replace_say_what_to_do(
    sink: Any, sink_offsets: TransactionalOffsets | None, said: str
) -> None:
    """The refusal names the sink, and the sink is not called."""
    settled = settle([40], Replay.REPLACE, sink_offsets, sink)
    assert settled.effect is None
    assert said in (settled.refused or "")


def test_replace_says_how_much_goes() -> None:
    """Every partition is asked about, also one whose offset stands where it is to go."""
    sink_offsets = Replacer()
    settled = settle([40, 50], Replay.REPLACE, sink_offsets)
    assert [(each.start, each.next_offset) for each in sink_offsets.asked] == [(50, 40), (50, 50)]
    assert settled.refused is None
    assert settled.effect is not None
    assert settled.effect.startswith("7 rows of the records that are read again are removed")
    assert settled.rows == 7


def test_replace_goes_further_back_to_whole_micro_batches() -> None:
    """For the partitions of the command, and the plan says so."""
    settled = settle([40, 45], Replay.REPLACE, Replacer({"c/g/t/0": 33}))
    assert [change.after for change in settled.plan] == [33, 45]
    assert settled.plan[0].notes[-1].startswith("40 is within a micro-batch")
    assert settled.refused is None


@pytest.mark.parametrize(
    ("targets", "needed", "said"),
    [
        ([40], {"c/g/t/1": 20}, "<c/g/t/1> from 20 on, which is not among the partitions"),
        ([40, 60], {"c/g/t/1": 45}, "events-1 from 45 on, which is to go forward"),
        ([40], {"c/g/t/0": 5}, "events-0 from 5 on, of which the log has no more than from 10 on"),
    ],
)
def test_a_replacement_beyond_the_command_is_refused(
    targets: list[int], needed: dict[str, int], said: str
) -> None:
    """A partition not chosen, one that moves forward, and records that are gone are named."""
    settled = settle(targets, Replay.REPLACE, Replacer(needed))
    assert said in (settled.refused or "")
    assert [change.after for change in settled.plan] == targets


def test_a_sink_that_cannot_tell_is_quoted() -> None:
    """The sink's reason is the refusal's; any other error ends the command."""
    settled = settle([40], Replay.REPLACE, Replacer(refuses=ReplaceRefusedError("set origin")))
    assert settled.refused == "--replay replace: set origin"
    with pytest.raises(HeadraceError, match=r"cannot be looked up: OSError: gone; nothing was"):
        settle([40], Replay.REPLACE, Replacer(refuses=OSError("gone")))
