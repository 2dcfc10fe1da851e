"""The commands for a changelog, from a configuration to an exit code."""

from __future__ import annotations

import sys
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError, StartError, UsageError
from headrace.core.positions import format_moment
from headrace.core.records import TopicPartition, identity_of
from headrace.extensions.keyed.row import KeyRow
from headrace.extensions.keyed.section import StateProcessorConfig
from headrace.extensions.keyed.state import Progress
from headrace.extensions.keyed.state_reader import FoundKey
from headrace.extensions.keyed.topics import (
    CHANGELOG_SETTINGS,
    Changelog,
    changelog_doubts,
    found_lost,
    open_changelog,
)
from headrace.ops.admin.commands import print_key, print_keys
from headrace.ops.admin.state import described_key
from headrace.ops.offsets.reader import ANSWER_TIMEOUT
from headrace.ops.state.change import StateOf, changing, choose
from headrace.ops.state.changelog import (
    ChangelogTable,
    FileHead,
    PartitionEnd,
    StateFile,
    writing,
    written_to,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from headrace.config import Config
    from headrace.extensions.keyed.store import RocksStore
    from headrace.kafka.ports import StoredOffset
    from headrace.ops.offsets.reader import PartitionOffsets

EXIT_DIFFERENT = EXIT_LOST = 1

#: Seconds in which a partition's rows have to be stored, in one transaction.
_TRANSACTION_TIMEOUT = 600.0

#: Keys that are named of those that differ.
_SHOWN = 10

#: How often a partition is read again that is written to meanwhile.
_TRIES = 3


# --- looking -------------------------------------------------------------------------------------


def show_key(
    config: Config,
    channel: str | None,
    key: str,
    partition: int | None,
    *,
    is_hex: bool,
    as_json: bool,
) -> None:
    """Print a key as the changelog has it, for each partition that has it.

    Raises:
        HeadraceError: none has it.
    """
    state = StateOf.of(config, channel)
    name = state.key(key, is_hex=is_hex)
    with state.changelog() as changelog:
        rows = [(n, changelog.row(n, name)) for n in _numbers(changelog, partition)]
    found = [_described(state, number, name, row) for number, row in rows if row is not None]
    for each in found:
        print_key(each, as_json=as_json)
    if not found:
        raise HeadraceError(
            f"{state.topic} has no state of key {key}; headrace state list --changelog shows its "
            "keys"
        )


def show_keys(
    config: Config,
    channel: str | None,
    prefix: str,
    limit: int,
    partition: int | None,
    *,
    is_hex: bool,
    as_json: bool,
) -> None:
    """Print the first keys of the changelog that begin so, by partition and key."""
    state = StateOf.of(config, channel)
    begin = state.key(prefix, is_hex=is_hex)
    with state.changelog() as changelog:
        found = (
            _described(state, number, key, row)
            for number in _numbers(changelog, partition)
            for key, row in changelog.rows(number).items()
            if key.startswith(begin)
        )
        print_keys(islice(found, limit), as_json=as_json)
        if next(found, None) is not None:
            typer.echo(f"there are more; say --limit, which is {limit}, or --prefix", err=True)


def _numbers(changelog: ChangelogTable, partition: int | None) -> Iterable[int]:
    count = changelog.partitions
    if partition is not None and partition >= count:
        raise UsageError(f"{changelog.topic} has no partition {partition}; it has {count}")
    return range(count) if partition is None else [partition]


def _described(state: StateOf, number: int, key: bytes, row: KeyRow) -> dict[str, Any]:
    found = FoundKey(number, key, row, Progress())
    return described_key(found, state.processor).model_dump(mode="json")


# --- export --------------------------------------------------------------------------------------


def export(config: Config, channel: str | None, file: Path, kind: str) -> None:
    """Write all rows and what goes with them to a file, or to standard output."""
    state = StateOf.of(config, channel)
    state.require_one_topic("export")
    with state.changelog() as changelog, closing(state.transactions()) as stored:
        info = changelog.catalog.describe([state.input], Deadline.after(ANSWER_TIMEOUT))
        if state.input not in info:
            raise UsageError(f"topic {state.input} does not exist on the brokers")
        topic_id = info[state.input].topic_id
        head = FileHead(
            state.name,
            state.channel.group,
            state.input,
            topic_id,
            changelog.partitions,
            format_moment(int(SYSTEM_CLOCK.time()) * 1000),
        )
        cluster = changelog.catalog.cluster_id(Deadline.after(ANSWER_TIMEOUT))
        count, moving, unplaced = 0, [], []
        with _output(file) as out, writing(out, head, kind) as writer:
            for number in range(head.partitions):
                identity = identity_of(cluster, head.group, topic_id, number)
                rows, is_still, found = _read_rows(
                    changelog, number, partial(stored.stored_entry, identity)
                )
                offset = None if found is None or not is_still else found.offset
                if is_still and found is None and rows:
                    # forgotten, or of another input: whatever is there may be in the rows already
                    unplaced.append(number)
                elif is_still and found is None and state.channel.initial_offset == "earliest":
                    # nothing was committed: a start begins there
                    input_partition = TopicPartition(state.input, number)
                    deadline = Deadline.after(ANSWER_TIMEOUT)
                    offset, _ = changelog.catalog.watermarks(input_partition, deadline)
                if offset is None and number not in unplaced:
                    moving.append(number)
                time = None if found is None else found.stream_time
                writer.write(number, rows, PartitionEnd(len(rows), offset, time))
                count += len(rows)
    typer.echo(f"{count} keys of {head.partitions} partitions written to {file}", err=True)
    if moving:
        typer.echo(
            f"partitions {', '.join(map(str, moving))} have no offset, or are written to: the file "
            "is good to look at; to import it, stop the channel and export again",
            err=True,
        )
    if unplaced:
        typer.echo(
            f"no offset is stored for partitions {', '.join(map(str, unplaced))}, so nothing says "
            "which records their state is of: headrace state import takes the file with --offsets, "
            "latest where all records that are there count in it, and earliest where none does",
            err=True,
        )


def _read_rows(
    changelog: ChangelogTable, number: int, stored: Callable[[], StoredOffset | None]
) -> tuple[dict[bytes, KeyRow], bool, StoredOffset | None]:
    """Return a partition's rows, and the offset that was stored before they were read.

    In between: whether nothing was stored while they were read, so that both belong together.
    """
    for _ in range(_TRIES):
        before = stored()
        rows = changelog.rows(number)
        if stored() == before:
            return rows, True, before
    return rows, False, before


@contextmanager
def _output(file: Path) -> Iterator[Any]:
    """Open a file that appears when it is whole."""
    if str(file) == "-":
        with nullcontext(sys.stdout.buffer) as out:
            yield out
        return
    unfinished = file.with_name(f"{file.name}.part")
    try:
        with unfinished.open("wb") as out:
            yield out
        unfinished.replace(file)
    except OSError as error:
        raise written_to(file, error) from error
    finally:
        unfinished.unlink(missing_ok=True)


# --- changes of a stopped channel ----------------------------------------------------------------


def import_state(
    config: Config, channel: str | None, path: Path, *, replace_rows: bool, offsets: str
) -> None:
    """Store the rows of a file, and the offsets that go with them, in place of the present ones."""
    state = StateOf.of(config, channel)
    state.require_one_topic("import")
    file = StateFile.open(path)
    for _ in file.rows():
        pass  # all of it is read before anything is changed
    with changing(state) as (change, transactions, changelog):
        wanted = {
            found.partition.partition: _offset_for(file, found, offsets) for found in change.found
        }
        if file.head.partitions != len(change.found):
            raise UsageError(
                f"{path} has {file.head.partitions} partitions and {state.topic} "
                f"{len(change.found)}: keys would be in the wrong ones"
            )
        present = {
            found.partition.partition: set(change.rows(changelog, found)) for found in change.found
        }
        if any(present.values()) and not replace_rows:
            count = sum(map(len, present.values()))
            raise UsageError(
                f"{state.topic} has {count} keys; say --replace to have the file's in their place"
            )
        by_partition = groupby(file.rows(), itemgetter(0))
        following = next(by_partition, None)
        for found in change.found:
            number = found.partition.partition
            rows: dict[bytes, KeyRow | None] = {}
            if following is not None and following[0] == number:
                rows = {key: row for _, key, row in following[1]}
                following = next(by_partition, None)
            gone = dict.fromkeys(present[number] - rows.keys())
            offset, time = wanted[number]
            change.commit(
                transactions, found, [*gone.items(), *rows.items()], {found.partition: offset}, time
            )
            typer.echo(f"{found.partition}: {len(rows)} keys, from offset {offset} on")


def _offset_for(file: StateFile, found: PartitionOffsets, offsets: str) -> tuple[int, int | None]:
    """Return where a partition goes on, and its stream time."""
    end = file.ends.get(found.partition.partition)
    time = None if end is None else end.stream_time
    if offsets != "file":
        # what is read again must not be late for the time that it brought the file's rows to
        return (found.low, None) if offsets == "earliest" else (found.high, time)
    if end is None or end.offset is None:
        problem = "has no offset for it: the channel was writing, or its offset was forgotten"
    elif file.head.topic_id != found.topic_id:
        problem = f"is of another topic, with the id {file.head.topic_id}"
    elif not found.low <= end.offset <= found.high:
        problem = f"has offset {end.offset}, and the log has {found.low} to {found.high}"
    else:
        return end.offset, time
    raise UsageError(
        f"{found.partition}: the file {problem}; say where to go on with --offsets earliest or "
        "latest, or export again while the channel is stopped"
    )


def forget(config: Config, channel: str | None, to: str | None, *, yes: bool) -> None:
    """Delete all rows of a stopped channel, and have it begin again; asks, unless ``yes``."""
    state = StateOf.of(config, channel)
    where = to or state.channel.initial_offset
    for topic in state.processor.purged_topics(state.channel):
        typer.echo(
            f"{topic} is purged as it is processed: what is gone from it is not counted again. "
            "Another group of the channel, or of its topology, counts from the beginning",
            err=True,
        )
    if not yes and not typer.confirm(
        f"Delete all of {state.topic}, and have {state.name} begin again at the {where} offset?"
    ):
        raise UsageError("nothing was changed")
    with changing(state, may_differ=True) as (change, transactions, changelog):
        change.fit_changelog()
        for found in change.found:
            keys = change.rows(changelog, found)
            starts = {
                each.partition: each.low if where == "earliest" else each.high
                for each in change.of_task(found)
            }
            change.commit(transactions, found, [(key, None) for key in keys], starts, None)
            begins = ", ".join(
                f"offset {start}" if partition == found.partition else f"{start} of {partition}"
                for partition, start in starts.items()
            )
            typer.echo(f"{found.partition}: {len(keys)} keys forgotten; begins at {begins}")


def release(config: Config, channel: str | None, key: str, *, is_hex: bool) -> None:
    """End the quarantine of a key; it keeps the state and timers that it had."""
    state = StateOf.of(config, channel)
    name = state.key(key, is_hex=is_hex)
    with changing(state) as (change, transactions, changelog):
        for found in change.found:
            row = change.rows(changelog, found).get(name)
            if row is None:
                continue
            reason = row.quarantined
            if reason is None:
                raise UsageError(f"key {key} is not in quarantine")
            free = without_quarantine(row)
            entry = transactions.stored_entry(found.identity)
            time = None if entry is None else entry.stream_time
            change.commit(transactions, found, [(name, free)], {}, time, whole=False)
            typer.echo(f"{found.partition}: key {key} is released: {reason}")
            return
    raise UsageError(f"channel {state.name} has no key {key}; headrace state list shows them")


def without_quarantine(row: KeyRow) -> KeyRow | None:
    """Return a row as it is without quarantine, None where nothing is left of it."""
    timers = row.timers
    return KeyRow.of(row.state, timers) if timers or row.state is not None else None


# --- looking after -------------------------------------------------------------------------------


def verify(config: Config, channel: str | None) -> int:
    """Compare the local store of a stopped process with the changelog; return the exit code."""
    state = StateOf.of(config, channel)
    store = state.open_store()
    differing = 0
    with closing(store), state.changelog() as changelog:
        info = changelog.catalog.describe([state.topic], Deadline.after(ANSWER_TIMEOUT))
        for number in range(changelog.partitions):
            position = store.position(number)
            if position is None:
                typer.echo(f"{state.topic}-{number}: nothing of it is here")
                continue
            low, high = changelog.ends(number)
            if (
                position.topic_id != info[state.topic].topic_id
                or not low <= position.offset <= high
            ):
                typer.echo(f"{state.topic}-{number}: outdated; a start reads the whole changelog")
                continue
            found = compared(store, changelog, number, position.offset)
            differing += len(found.wrong)
            lag = high - position.offset
            typer.echo(
                f"{state.topic}-{number}: {found.keys} keys compared, {len(found.wrong)} differ"
                + (f"; {lag} offsets behind" if lag else "")
                + (f", {found.unsure} keys cannot be told" if found.unsure else "")
            )
            for key in found.wrong[:_SHOWN]:
                typer.echo(f"  {key!r}")
    if differing:
        typer.echo(
            f"{differing} keys differ: delete {state.store_folder}, and the next start reads the "
            "changelog",
            err=True,
        )
    return EXIT_DIFFERENT if differing else 0


class Compared(NamedTuple):
    """``unsure`` are keys whose row at the store's position was compacted away."""

    keys: int
    wrong: list[bytes]
    unsure: int


def compared(store: RocksStore, changelog: ChangelogTable, number: int, position: int) -> Compared:
    """Compare a partition's rows, in the store's position and what came since.

    What the changelog has after the position may be in the store or not.
    """
    there: dict[bytes, KeyRow | None] = {}
    since: dict[bytes, set[KeyRow | None]] = {}
    for key, logged in changelog.records(number):
        if logged.offset < position:
            there[key] = logged.row
        else:
            since.setdefault(key, set()).add(logged.row)
    keys, unsure, wrong = 0, 0, []
    for key, row in store.rows(number):
        keys += 1
        has_known = key in there
        known = there.pop(key, None)
        if row == known or row in since.get(key, ()):
            continue
        if key in since and not has_known:
            unsure += 1
        else:
            wrong.append(key)
    # what is left is not in the store
    left = {key for key, row in there.items() if row is not None}
    wrong += [key for key in left if None not in since.get(key, ())]
    return Compared(keys + len(left), sorted(wrong), unsure)


def topics(config: Config, channel: str | None, *, create: bool) -> int:
    """Print the internal topics, created if ``create``; return the exit code.

    What is wrong with one channel does not keep the others from being looked at.
    """
    names = [channel] if channel is not None else _all(config)
    looks = [_look_at_topics(StateOf.of(config, name), create=create) for name in names]
    return EXIT_LOST if any(looks) else 0


def _look_at_topics(state: StateOf, *, create: bool) -> bool:
    """Print the changelog of a channel, and what is lost of it; return whether anything is."""
    with state.changelog() as changelog, closing(state.transactions()) as stored:
        refusal = None
        try:
            known = open_changelog(
                changelog.catalog,
                state.channel.group,
                state.input,
                Deadline.after(ANSWER_TIMEOUT),
                create=create,
                replication_factor=state.processor.internal.replication_factor,
                grows=state.has_fixed_keys,
                step=state.split_step,
            )
        except StartError as error:
            refusal = str(error)
            known = _known_changelog(state, changelog)
        else:
            settings = changelog.catalog.settings(state.topic, Deadline.after(ANSWER_TIMEOUT))
            shown = ", ".join(f"{key}={settings.get(key)}" for key in CHANGELOG_SETTINGS)
            typer.echo(f"{state.name}: {state.topic}, {known.partitions} partitions, {shown}")
            for doubt in changelog_doubts(settings, state.processor.state.max_row):
                typer.echo(f"warning: {state.topic}: {doubt}")
        problems = list(
            found_lost(
                changelog.catalog,
                known,
                state.channel.group,
                state.channel.topics,
                splits=not state.has_fixed_keys,
                stored=stored.last_entries,
                refuse=lambda former: state.processor.refuse_state(former, state.channel),
                step=state.split_step,
            )
        )
    for problem in problems:
        typer.echo(f"error: {problem}")
    # where it is gone, with its rows, it is not to be created as if there had never been any
    if refusal is not None and (known.topic_id or not problems) and refusal not in problems:
        typer.echo(f"{state.name}: {refusal}", err=True)
    return bool(problems) or refusal is not None


def _known_changelog(state: StateOf, changelog: ChangelogTable) -> Changelog:
    """Return a changelog as it is, without an id where it does not exist."""
    found = changelog.catalog.describe([state.topic], Deadline.after(ANSWER_TIMEOUT))
    info = found.get(state.topic)
    if info is None:
        return Changelog(state.topic, "", 0.0)
    return Changelog(info.name, info.topic_id, 0.0, info.partitions)


def _all(config: Config) -> list[str]:
    kept = [
        name
        for name, each in config.channels.items()
        if isinstance(each.processor, StateProcessorConfig)
    ]
    if not kept:
        raise UsageError(choose(kept))
    return kept
