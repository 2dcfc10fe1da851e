"""The folder of a snapshot: the files of a local store, and what they are of.

``snapshot.json`` names the channel, the changelog and how far each partition follows it, and has
the length and the checksum of each file in ``db``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import HeadraceError, UsageError
from headrace.core.files import read_regular, write_whole
from headrace.extensions.keyed.store import Position, StoredCommit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORMAT_VERSION = 1
_VERSION_KEY = "headrace_snapshot"

#: What it is of, and the folder with the files, in that of the snapshot.
HEAD, FILES = "snapshot.json", "db"

#: Bytes that are copied at a time.
_PIECE = 4 << 20

#: What a database has for itself: its lock, and lines for people.
_OWN = ("LOCK", "LOG")


@dataclass(frozen=True, slots=True)
class FilePrint:
    """A file's length in bytes and its SHA-256 in hexadecimal digits."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Follows:
    """The position of a partition's rows in the changelog, and the commit that they are of.

    ``commit`` is None where they may be of several.
    """

    position: Position
    commit: StoredCommit | None

    def document(self) -> dict[str, Any]:
        """Return it as it stands in files."""
        commit = None if self.commit is None else self.commit._asdict()
        return {**self.position._asdict(), "commit": commit}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Follows:
        """Return what :meth:`document` made."""
        position = Position(**{name: document[name] for name in Position._fields})
        commit = document["commit"]
        return cls(position, None if commit is None else StoredCommit(**commit))


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """The origin of a snapshot. ``topic_id`` and ``partitions`` are those of the changelog.

    ``follows`` is by partition, those without a position left out; ``files`` by the name.
    """

    channel: str
    group: str
    cluster: str
    changelog: str
    topic_id: str
    partitions: int
    member: str
    taken: str
    follows: Mapping[int, Follows]
    files: Mapping[str, FilePrint]

    def document(self) -> dict[str, Any]:
        """Return it as it stands in files."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        follows = {str(number): each.document() for number, each in self.follows.items()}
        files = {name: asdict(each) for name, each in self.files.items()}
        return {_VERSION_KEY: FORMAT_VERSION, **plain, "follows": follows, "files": files}

    @classmethod
    def of(cls, document: Any, file: Path) -> SnapshotHead:
        """Return what :meth:`document` made.

        Raises:
            UsageError: it is something else.
        """
        version = document.get(_VERSION_KEY) if isinstance(document, dict) else None
        if version is None:
            raise UsageError(f"{file} is of no snapshot of state: it has no {_VERSION_KEY}")
        if version != FORMAT_VERSION:
            raise UsageError(
                f"{file} has format version {version!r}; this Headrace knows {FORMAT_VERSION}, "
                "so take it up with the one that wrote it"
            )
        try:
            follows = {int(n): Follows.of(each) for n, each in document["follows"].items()}
            files = {name: FilePrint(**each) for name, each in document["files"].items()}
            head = cls(**{name: document[name] for name in _PLAIN}, follows=follows, files=files)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{file} is not what headrace state snapshot wrote: {error!r}"
            ) from error
        for name in head.files:
            # what is copied goes to no other folder
            if Path(name).name != name:
                raise UsageError(f"{file} names {name}, which is no file of the folder {FILES}")
        return head


_PLAIN = ("channel", "group", "cluster", "changelog", "topic_id", "partitions", "member", "taken")


def read_head(folder: Path) -> SnapshotHead:
    """Return what a snapshot is of.

    Raises:
        UsageError: it cannot be read, or is no snapshot.
    """
    file = folder / HEAD
    try:
        document = json.loads(read_regular(file))
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror or error}; name the folder that headrace "
            "state snapshot wrote"
        ) from error
    except ValueError as error:
        raise UsageError(f"{file} is no JSON: {error}") from error
    return SnapshotHead.of(document, file)


@contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """Yield a folder to write a snapshot into, which is ``folder`` once the block has ended.

    Raises:
        UsageError: there is something in it.
        HeadraceError: it cannot be written; nothing is left of it.
    """
    target = folder.absolute()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder; name another one")
    unfinished: Path | None = None
    try:
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        yield unfinished
        unfinished.rename(target)
    except OSError as error:
        raise HeadraceError(
            f"the snapshot cannot be written to {folder}: {error.strerror or error} "
            f"({error.filename}); nothing is left of it"
        ) from error
    finally:
        if unfinished is not None and unfinished.exists():
            shutil.rmtree(unfinished)


def write_files(files: Path, folder: Path) -> dict[str, FilePrint]:
    """Copy the files of a database that is closed into a snapshot's folder; return their prints.

    Raises:
        OSError: a file cannot be read or written.
    """
    target = folder / FILES
    target.mkdir()
    names = sorted(each.name for each in files.iterdir() if not each.name.startswith(_OWN))
    return {name: _copy(files / name, target / name) for name in names}


def write_head(head: SnapshotHead, folder: Path) -> None:
    """Write what a snapshot is of, after its files.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(folder / HEAD, json.dumps(head.document(), indent=2) + "\n")


def read_files(head: SnapshotHead, folder: Path, target: Path) -> None:
    """Copy a snapshot's files into an empty folder, and see that they are what was written.

    Raises:
        UsageError: one is missing, or is another one.
        OSError: one cannot be written.
    """
    for name, written in head.files.items():
        source = folder / FILES / name
        if not source.is_file():
            raise UsageError(f"{source} is missing; copy the snapshot again, or take another one")
        found = _copy(source, target / name)
        if found != written:
            raise UsageError(
                f"{source} is not what was written: it has {found.bytes} bytes and the SHA-256 "
                f"{found.sha256}, and had {written.bytes} and {written.sha256}; copy the snapshot "
                "again, or take another one"
            )


def _copy(source: Path, target: Path) -> FilePrint:
    """Copy a file onto the disk, and return its print."""
    found, count = hashlib.sha256(), 0
    with source.open("rb") as read, target.open("xb") as written:
        while piece := read.read(_PIECE):
            found.update(piece)
            count += len(piece)
            written.write(piece)
        written.flush()
        os.fsync(written.fileno())
    return FilePrint(count, found.hexdigest())
