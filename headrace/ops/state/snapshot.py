"""Taking a local store to another machine: ``headrace state snapshot`` and ``restore``.

A snapshot has the files of a store, and says how far each partition follows the changelog. Put in
the place of another machine's store it saves what would be read of the changelog: a start reads
only what came since. It has no offsets of the input: these are with the group, as before.
"""

from __future__ import annotations

import shutil
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import typer

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError, StartError, UnreachableError, UsageError
from headrace.core.positions import format_moment
from headrace.core.processes import who
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.errors import CorruptStoreError, StateStoreError
from headrace.extensions.keyed.positions import TRUNCATED, misfit
from headrace.extensions.keyed.store import RocksStore
from headrace.extensions.keyed.store_folder import StoreFolder
from headrace.extensions.keyed.topics import DELETE_RETENTION_MS, Changelog
from headrace.ops.admin.client import AdminClient, ClientOptions, find
from headrace.ops.offsets.errors import ChannelRunningError
from headrace.ops.offsets.reader import ANSWER_TIMEOUT
from headrace.ops.state.change import StateOf
from headrace.ops.state.snapshot_files import (
    Follows,
    SnapshotHead,
    read_files,
    read_head,
    write_files,
    write_head,
    writing,
)
from headrace.zookeeper.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.config import Config
    from headrace.extensions.keyed.store import Position
    from headrace.kafka.ports import TopicCatalog
    from headrace.ops.state.changelog import ChangelogTable


# --- taking --------------------------------------------------------------------------------------


def take_snapshot(config: Config, file: Path, channel: str | None, folder: Path) -> None:
    """Copy the local store to a folder; ``file`` is the configuration's, by which a process is met.

    Raises:
        ChannelRunningError: a process has the store, and does not answer.
        HeadraceError: nothing was written.
    """
    state = StateOf.of(config, channel)
    with writing(folder) as unfinished, state.changelog() as changelog:
        deadline = Deadline.after(ANSWER_TIMEOUT)
        info, cluster = changelog.info, changelog.catalog.cluster_id(deadline)
        taken = format_moment(int(SYSTEM_CLOCK.time()) * 1000)
        with _linked(state, file) as copy:
            follows = follows_in(copy, info.topic_id)
            if not follows:
                raise UsageError(
                    f"the state store in {state.store_folder} has no partition that follows "
                    f"{info.name} as it is now; there is nothing to copy"
                )
            files = write_files(copy, unfinished)
        head = SnapshotHead(
            state.name,
            state.channel.group,
            cluster,
            info.name,
            info.topic_id,
            info.partitions,
            config.instance_id,
            taken,
            follows,
            files,
        )
        write_head(head, unfinished)
    size = sum(each.bytes for each in files.values())
    typer.echo(
        f"{len(follows)} of {info.partitions} partitions of {info.name} written to {folder}: "
        f"{len(files)} files, {size} bytes"
    )


@contextmanager
def _linked(state: StateOf, file: Path) -> Iterator[Path]:
    """Yield a folder with the store's files as they are, of a process that runs or of none."""
    try:
        store = state.open_store()
    except ChannelRunningError as running:
        copy = _ask_process(state, file, running)
    else:
        with closing(store):
            copy = store.copy_files()
    try:
        yield copy
    except FileNotFoundError as error:
        raise HeadraceError(
            f"{error.filename} is gone: the process was started meanwhile, or another snapshot of "
            f"{state.name} was begun; run the command again"
        ) from error
    finally:
        # what is left is deleted by the next one, and by the next start
        shutil.rmtree(copy, ignore_errors=True)


def _ask_process(state: StateOf, file: Path, running: ChannelRunningError) -> Path:
    """Return the folder into which the process that has the store has linked its files."""
    path = f"/api/v1/channels/{quote(state.name, safe='')}/snapshot"
    try:
        with AdminClient(find(ClientOptions(config=file))) as client:
            copy = Path(client.post(path, {"by": who()})["folder"])
    except UnreachableError as error:
        raise ChannelRunningError(f"{running}. Its API was asked for a copy: {error}") from error
    if not (copy.is_dir() and copy.parent.samefile(state.store_folder.parent)):
        raise UsageError(
            f"the process of {file} has put its files to {copy}, and the store of this "
            f"configuration is {state.store_folder}; run this on its machine, as its user"
        )
    return copy


def follows_in(copy: Path, topic_id: str) -> dict[int, Follows]:
    """Return how far the partitions in a copy of a store follow a changelog, the one with an id.

    What is of another topic is left out: a start would drop it.

    Raises:
        StateStoreError, StartError: the files cannot be used.
    """
    with closing(RocksStore(copy)) as store:
        store.open_to_read()
        positions = store.positions()
        return {
            number: Follows(position, store.commit_of(number))
            for number, position in sorted(positions.items())
            if position.topic_id == topic_id
        }


# --- putting in place ----------------------------------------------------------------------------


def restore_from_snapshot(config: Config, channel: str | None, folder: Path) -> None:
    """Replace the local store of a stopped process by a snapshot's.

    Ended anywhere, the former store or the new one is there at the next start.

    Raises:
        ChannelRunningError: a process runs with the same instance_id.
        UsageError: the snapshot does not fit, or the store here has more; nothing was changed.
        HeadraceError: nothing was changed.
    """
    state = StateOf.of(config, channel)
    head = read_head(folder)
    place = StoreFolder(state.store_folder)
    try:
        with _held(config), state.changelog() as changelog:
            place.settle()
            lags = _require_fit(state, head, changelog, folder)
            _require_no_more(state, head, folder)
            with place.replacing() as part:
                read_files(head, folder, part)
                _require_usable(part, head, folder)
    except OSError as error:
        raise HeadraceError(
            f"the snapshot cannot be put to {place.path}: {error.strerror or error} "
            f"({error.filename}); correct that and run the command again. The next start has the "
            "store of before, or the snapshot's where that is whole"
        ) from error
    for number, lag in lags.items():
        typer.echo(
            f"{head.changelog}-{number}: from offset {head.follows[number].position.offset} on"
            + (f", {lag} behind" if lag else "")
        )


@contextmanager
def _held(config: Config) -> Iterator[None]:
    """Keep processes with the same instance_id from starting.

    Raises:
        ChannelRunningError: one runs.
    """
    identity = Identity(Path(config.state_dir), config.instance_id)
    try:
        identity.acquire()
    except StartError as error:
        raise ChannelRunningError(str(error)) from error
    try:
        yield
    finally:
        identity.release()


def _require_fit(
    state: StateOf, head: SnapshotHead, changelog: ChangelogTable, folder: Path
) -> Mapping[int, int]:
    """Return the lag of each partition of a snapshot, in offsets of its changelog.

    Raises:
        UsageError: it is of another channel or cluster, or cannot be continued from its changelog.
    """
    wanted, found = (state.channel.group, state.topic), (head.group, head.changelog)
    if found != wanted:
        raise UsageError(
            f"{folder} is of group {head.group} and {head.changelog}, and channel {state.name} has "
            f"group {wanted[0]} and {wanted[1]}"
        )
    catalog = changelog.catalog
    cluster = catalog.cluster_id(Deadline.after(ANSWER_TIMEOUT))
    if head.cluster != cluster:
        raise UsageError(
            f"{folder} is of the cluster {head.cluster}, and this one is {cluster}: its topics "
            "have other offsets. headrace state export and import take states to another cluster"
        )
    info = changelog.info
    settings = catalog.settings(info.name, Deadline.after(ANSWER_TIMEOUT))
    retention = float(settings.get("delete.retention.ms", DELETE_RETENTION_MS)) / 1000
    known = Changelog(info.name, info.topic_id, retention, info.partitions)
    if (problem := misfit_of(head, known, catalog)) is not None:
        raise UsageError(f"{folder}: {problem}. Without it a start reads the whole changelog")
    return {
        number: changelog.ends(number)[1] - each.position.offset
        for number, each in head.follows.items()
    }


def misfit_of(head: SnapshotHead, changelog: Changelog, catalog: TopicCatalog) -> str | None:
    """Return why a snapshot cannot be continued from a changelog, None where it can. Blocks.

    Raises:
        KafkaUnavailableError: no broker answered.
    """
    name = changelog.topic
    if head.topic_id != changelog.topic_id:
        return (
            f"it is of {name} with the id {head.topic_id}, and the topic has {changelog.topic_id} "
            "now: it was made again"
        )
    if head.partitions != changelog.partitions:
        return f"{name} had {head.partitions} partitions, and has {changelog.partitions} now"
    for number, each in head.follows.items():
        position, place = each.position, TopicPartition(name, number)
        deadline = Deadline.after(ANSWER_TIMEOUT)
        bounds = catalog.watermarks(place, deadline)
        reason = misfit(position, changelog, bounds, SYSTEM_CLOCK.time())
        if reason is None and position.leader_epoch is not None:
            at = place, position.offset, position.leader_epoch
            reason = TRUNCATED if catalog.truncated_at(*at, deadline)[0] else None
        if reason is not None:
            return f"{place} at offset {position.offset} cannot be continued: {reason}"
    return None


def _require_no_more(state: StateOf, head: SnapshotHead, folder: Path) -> None:
    """Return if a snapshot has all that the store here has.

    Raises:
        UsageError: the store has more of a partition.
        ChannelRunningError: a process has the store.
    """
    if not state.store_folder.exists():
        return
    try:
        with closing(state.open_store()) as store:
            present = store.positions()
    except CorruptStoreError as error:
        typer.echo(f"what is here is replaced: {error}", err=True)
        return
    further = more_than(head, present)
    if further:
        raise UsageError(
            f"the state store in {state.store_folder} has more of partitions "
            f"{', '.join(map(str, further))} than {folder}; to have the snapshot in its place, "
            "delete it and run the command again"
        )


def more_than(head: SnapshotHead, present: Mapping[int, Position]) -> list[int]:
    """Return the partitions of which a store has more than a snapshot, of the same changelog."""
    return [
        number
        for number, position in sorted(present.items())
        if position.topic_id == head.topic_id
        and (number not in head.follows or position.offset > head.follows[number].position.offset)
    ]


def _require_usable(part: Path, head: SnapshotHead, folder: Path) -> None:
    """Return if files are a store with the positions of a snapshot.

    Raises:
        UsageError: they are not.
    """
    try:
        found = follows_in(part, head.topic_id)
    except (StateStoreError, StartError) as error:
        raise UsageError(f"the files of {folder} are no state store: {error}") from error
    if found != dict(head.follows):
        raise UsageError(
            f"the files of {folder} follow {head.changelog} to other offsets than it says; take "
            "another snapshot"
        )
