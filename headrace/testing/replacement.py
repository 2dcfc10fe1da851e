"""Contract tests for sinks whose output of a range can be replaced, beside :mod:`.sinks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.sinks.contract import OutputReplacer, TransactionalOffsets
from headrace.sinks.errors import CommitConflictError, ReplaceRefusedError
from headrace.testing.sinks import BatchCommitContract, TransactionalOffsetsContract

if TYPE_CHECKING:
    from headrace.sinks.contract import PartitionCommit
    from headrace.testing.sinks import SinkBench


class OutputReplacerContract(TransactionalOffsetsContract):
    """The contract of a sink that can replace its output: the sinks of ``place`` are set to.

    Each micro-batch has rows whose ``id`` says which it is.
    """

    @pytest.fixture
    def replacer(self, bench: SinkBench) -> OutputReplacer:
        """Return a sink with 0..10 of two partitions apart, 10..20 together, 20..30 apart."""
        for number, shares in enumerate(
            [
                [self.share(0, 0, 10)],
                [self.share(1, 0, 10)],
                [self.share(0, 10, 20), self.share(1, 10, 20)],
                [self.share(0, 20, 30)],
                [self.share(1, 20, 30)],
            ]
        ):
            self.store(bench, number, *shares)
        assert isinstance(bench.sink, OutputReplacer)
        return bench.sink

    def store(self, bench: SinkBench, number: int, *shares: PartitionCommit) -> None:
        """Commit a row with this number, of these ranges."""
        bench.store(f"batch-{number}", [{"id": number, "name": "x"}], *shares)

    def ids(self, bench: SinkBench) -> list[int]:
        """Return the rows' numbers, in order."""
        return [int(row["id"]) for row in bench.rows]

    def test_output_is_removed_with_the_move(
        self, replacer: OutputReplacer, bench: SinkBench
    ) -> None:
        """Output of the range is gone, other output stays, and what follows begins there."""
        other = bench.place.sink()
        assert isinstance(other, OutputReplacer)

        assert replacer.plan_replace([self.move(0, 30, 20)]).rows == 1
        assert other.replace([self.move(0, 30, 20)], "by hand") == 1

        assert self.ids(bench) == [0, 1, 2, 4]
        assert self.stored(bench) == [20, 30]
        self.store(bench, 5, self.share(0, 20, 30))
        assert self.ids(bench) == [0, 1, 2, 4, 5]

    def test_a_plan_reaches_back_to_whole_micro_batches(
        self, replacer: OutputReplacer, bench: SinkBench
    ) -> None:
        """It says where each partition has to go, also those that were not asked for."""
        plan = replacer.plan_replace([self.move(0, 30, 15)])

        assert plan.offsets == {self.identity(0): 10, self.identity(1): 10}
        assert plan.rows == 3
        assert self.ids(bench) == [0, 1, 2, 3, 4]
        assert replacer.replace([self.move(0, 30, 10), self.move(1, 30, 10)], "by hand") == 3
        assert self.ids(bench) == [0, 1]

    @pytest.mark.parametrize("target", [10, 15])
    def test_a_part_of_a_micro_batch_is_not_removed(
        self, target: int, replacer: OutputReplacer, bench: SinkBench
    ) -> None:
        """A range that does not cover it is refused, and nothing is changed."""
        with pytest.raises(ReplaceRefusedError):
            replacer.replace([self.move(0, 30, target)], "by hand")

        assert self.ids(bench) == [0, 1, 2, 3, 4]
        assert self.stored(bench) == [30, 30]

    def test_an_offset_that_is_elsewhere_keeps_the_output(
        self, replacer: OutputReplacer, bench: SinkBench
    ) -> None:
        """While another writer is active nothing is removed, and no offset moves."""
        moves = [self.move(0, 30, 20), self.move(1, 25, 20)]
        with pytest.raises(CommitConflictError) as caught:
            replacer.replace(moves, "by hand")

        assert [conflict.stored for conflict in caught.value.conflicts] == [30]
        assert self.ids(bench) == [0, 1, 2, 3, 4]
        assert self.stored(bench) == [30, 30]

    def test_a_move_forward_removes_nothing(
        self, replacer: OutputReplacer, bench: SinkBench
    ) -> None:
        """The offset moves, and the output stays."""
        assert replacer.replace([self.move(0, 30, 40), self.move(1, 30, 20)], "by hand") == 1

        assert self.ids(bench) == [0, 1, 2, 3]
        assert self.stored(bench) == [40, 20]

    def test_what_a_former_move_left_is_removed_too(
        self, replacer: OutputReplacer, bench: SinkBench
    ) -> None:
        """Also by a move to where the offset stands: all of its records are read again."""
        assert isinstance(bench.sink, TransactionalOffsets)
        bench.sink.move_offsets([self.move(0, 30, 20)], "by hand")

        assert replacer.replace([self.move(0, 20, 20)], "by hand") == 1

        assert self.ids(bench) == [0, 1, 2, 4]
        assert self.stored(bench, 1) == [20]


class GroupedReplacerContract(BatchCommitContract, OutputReplacerContract):
    """The contract of a sink that takes several results in one transaction, and can replace."""

    def test_micro_batches_that_were_committed_at_once_are_replaced_apart(
        self, bench: SinkBench
    ) -> None:
        """Each row is of its own micro-batch, not of all that the transaction had."""
        ranges = [[self.share(0, 0, 10)], [self.share(0, 10, 20), self.share(1, 0, 5)]]
        staged = [
            bench.stage(f"batch-{n}", [{"id": n, "name": "x"}], shares)
            for n, shares in enumerate(ranges)
        ]
        self.commit_all(bench.sink, staged, [self.share(0, 0, 20), self.share(1, 0, 5)])
        assert isinstance(bench.sink, OutputReplacer)

        plan = bench.sink.plan_replace([self.move(0, 20, 15)])

        assert plan.offsets == {self.identity(0): 10, self.identity(1): 0}
        assert bench.sink.replace([self.move(0, 20, 10), self.move(1, 5, 0)], "by hand") == 1
        assert self.ids(bench) == [0]
