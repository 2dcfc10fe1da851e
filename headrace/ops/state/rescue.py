"""Writing a local store to a changelog that lost its rows: ``headrace state restore``."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import typer

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.changelog import record_of
from headrace.extensions.keyed.store import StoredCommit
from headrace.extensions.keyed.topics import Changelog, lost_rows
from headrace.kafka.result_transactions import CountedMove
from headrace.ops.offsets.plan import while_held
from headrace.ops.offsets.reader import ANSWER_TIMEOUT
from headrace.ops.state.change import StateOf, changing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import Config
    from headrace.core.records import ResultRecord
    from headrace.extensions.keyed.store import RocksStore
    from headrace.kafka.ports import StoredOffset
    from headrace.ops.offsets.reader import PartitionOffsets
    from headrace.ops.state.change import StateChange
    from headrace.ops.state.changelog import ChangelogTable

EXIT_MISSING = 1


class _Lost(NamedTuple):
    """A partition whose rows the changelog has not, and what is stored for it."""

    found: PartitionOffsets
    stored: StoredOffset
    reason: str

    @property
    def number(self) -> int:
        return self.found.partition.partition


def restore_from_store(config: Config, channel: str | None) -> int:
    """Write what the local store has to a changelog that lost it; return the exit code.

    All partitions are written in one transaction. One is left as it is where the changelog has its
    rows, and where the store here is not of the last commit: then another member's may be.

    Raises:
        ChannelRunningError: the group has a member, or a process has the store.
        HeadraceError: nothing was changed.
    """
    state = StateOf.of(config, channel)
    state.require_one_topic("restore")
    with (
        changing(state, may_differ=True) as (change, transactions, changelog),
        closing(state.open_store()) as store,
    ):
        lost = []
        for found in change.found:
            stored = transactions.stored_entry(found.identity)
            reason = None if stored is None else _reason(store, changelog, found, stored)
            if stored is None or reason is None:
                typer.echo(f"{found.partition}: nothing is missing")
            else:
                lost.append(_Lost(found, stored, reason))
        here = [each for each in lost if _is_here(store, each)]
        records = chain.from_iterable(
            _records(state.topic, store, changelog, each) for each in here
        )
        moves = [_counted_move(change, each) for each in here]
        if moves:
            change.hold.confirm()
            conflicts = while_held(change.hold, lambda: transactions.commit(moves, records))
            if conflicts:
                raise HeadraceError(
                    f"nothing was changed: another client stored an offset meanwhile "
                    f"({conflicts[0]}); see who writes in the group, and run the command again"
                )
        for each in here:
            count = sum(1 for _ in store.rows(each.number))
            typer.echo(f"{each.found.partition}: {count} keys written to {state.topic}")
    elsewhere = [each for each in lost if each not in here]
    for each in elsewhere:
        typer.echo(
            f"{each.found.partition}: the store here is not of its last commit (number "
            f"{each.stored.commits}, at offset {each.stored.offset}); run this where it was held "
            f"last. {each.reason}",
            err=True,
        )
    return EXIT_MISSING if elsewhere else 0


def _reason(
    store: RocksStore, changelog: ChangelogTable, found: PartitionOffsets, stored: StoredOffset
) -> str | None:
    """Return why a changelog has not all rows of a partition that was committed to."""
    number, info = found.partition.partition, changelog.info
    if not stored.commits or number >= info.partitions:
        return None
    position, ends = store.position(number), changelog.ends(number)
    known = Changelog(info.name, info.topic_id, 0.0, info.partitions)
    reason = lost_rows(known, number, stored.changelog, position, ends)
    if reason is not None or position is None or position.leader_epoch is None:
        return reason
    if position.topic_id == info.topic_id:
        place = TopicPartition(info.name, number), position.offset, position.leader_epoch
        if changelog.catalog.truncated_at(*place, Deadline.after(ANSWER_TIMEOUT))[0]:
            return f"{info.name}-{number} lost its end before offset {position.offset}"
    return None


def _is_here(store: RocksStore, lost: _Lost) -> bool:
    """Return whether the store has exactly the state that goes with the offset."""
    wanted = StoredCommit(lost.stored.offset, lost.stored.commits or 0)
    return store.commit_of(lost.number) == wanted


def _counted_move(change: StateChange, lost: _Lost) -> CountedMove:
    found, stored = lost.found, lost.stored
    mark = change.mark(lost.number, written=True)
    if stored.changelog is not None:
        # that it is for another number of partitions is not forgotten with that
        mark = replace(mark, partitions=stored.changelog.partitions)
    return CountedMove(
        found.identity,
        found.partition,
        stored.offset,
        stored.offset,
        None,
        stored.leader_epoch,
        stored.commits or 0,
        stored.stream_time,
        mark,
    )


def _records(
    topic: str, store: RocksStore, changelog: ChangelogTable, lost: _Lost
) -> Iterator[ResultRecord]:
    """Yield a partition's rows, after deletions of what the changelog has and the store has not."""
    number = lost.number
    there = changelog.rows(number).keys()
    if there:
        for key in there - {key for key, _ in store.rows(number)}:
            yield record_of(topic, number, key, None)
    for key, row in store.rows(number):
        yield record_of(topic, number, key, row)
