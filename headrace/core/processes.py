"""The records by which commands find the processes of this machine.

A process that serves the admin API leaves a record under its configuration's absolute path, so
that who knows the path finds it, whatever the file holds by then. On Linux this needs the standard
library alone, because ``headrace health`` is asked every few seconds.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING

from headrace.core.errors import NoRecordError, SeveralProcessesError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the command of a Python that runs ``code`` with our modules, and with no others.

    Isolated, it takes neither the folder where it starts nor the environment for places of
    modules: who may write there must not have code run as this process's user.
    """
    path = [str(Path(each).absolute()) for each in sys.path if each]
    return [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {path!r}; {code}", *arguments]


def who() -> str:
    """Return who runs this process, as ``user@host``, for what is logged and written."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def is_alive(pid: int) -> bool:
    """Return whether a process of this id runs, whosever it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


#: The folder of the records in a folder for state.
RECORDS = "processes"

#: Where records are if the usual folder cannot be written, followed by the user's number.
FALLBACK = "/tmp/headrace-"  # noqa: S108 - whose it is, and who may write there, is looked at

#: Write access of others, which no private folder gives.
_OTHERS_WRITE = 0o022

#: Where the time of the start stands in /proc/PID/stat, counted from after the program's name.
_STARTED = 19


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder that systemd provides, else the user's own for such data.

    Raises:
        RuntimeError: the user has no home.
    """
    provided = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if provided:
        return Path(provided)
    home = environ.get("XDG_STATE_HOME", "")
    if Path(home).is_absolute():
        return Path(home) / "headrace"
    return Path(environ.get("HOME") or Path.home()) / ".local" / "state" / "headrace"


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process that serves the admin API, and the way in.

    ``file`` is the absolute path of its configuration. ``started`` tells it from a later process
    of the same id, and ``namespace`` where the id counts; both are empty where the system does not
    say. ``token`` is of this run alone. ``certificate_file`` is what it shows, None without TLS.
    """

    file: str
    instance_id: str
    url: str
    token: str = field(repr=False)
    certificate_file: str | None
    pid: int
    started: str
    namespace: str

    @classmethod
    def of_this_process(
        cls, file: Path, instance_id: str, url: str, token: str, certificate_file: Path | None
    ) -> ProcessRecord:
        """Describe the process that calls this."""
        return cls(
            os.path.abspath(file),  # noqa: PTH100 - as the file's path is read in config.origin
            instance_id,
            url,
            token,
            None if certificate_file is None else str(certificate_file),
            os.getpid(),
            start_of(os.getpid()),
            _namespace(),
        )

    @property
    def process(self) -> tuple[int, str, str]:
        """Return what no other process has: ids are given again, and each container has a process
        1.
        """
        return self.pid, self.namespace, self.started

    @property
    def runs(self) -> bool:
        """Return whether the process is there, as far as can be told: yes where ids say nothing
        here.
        """
        if self.namespace != _namespace():
            return True
        if not is_alive(self.pid):
            return False
        now = start_of(self.pid)
        return not now or not self.started or now == self.started

    def leave(self, state_dir: Path, environ: Mapping[str, str]) -> list[Path]:
        """Write the record where it is looked for, and return where. Blocks for a few files.

        That is ``state_dir``, and what who only knows the file's path takes for it. Records of the
        file are removed there if their process does not run any more.

        Raises:
            OSError: ``state_dir`` cannot be written.
        """
        usual, fallback = _folders(environ)
        for path in _paths({state_dir / RECORDS, usual, fallback}, _prefix(self.file), []):
            with suppress(OSError, ValueError):
                if not _read(path).runs:
                    path.unlink()
        written = [self._write(state_dir / RECORDS)]
        if usual == state_dir / RECORDS:
            return written
        for folder in (usual, fallback):
            with suppress(OSError):
                return [*written, self._write(folder)]
        return written

    def _write(self, folder: Path) -> Path:
        # takes a while to import, and readers have no use for it
        from headrace.core.files import write_whole  # noqa: PLC0415

        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _trusted(folder):
            raise PermissionError(f"others may write to {folder}")
        path = folder / f"{_prefix(self.file)}{self.instance_id}.json"
        write_whole(path, json.dumps(asdict(self)))
        return path


def forget(records: Iterable[Path]) -> None:
    """Remove what this process left, but not what a later one did."""
    own = os.getpid(), _namespace(), start_of(os.getpid())
    for path in records:
        with suppress(OSError, ValueError):
            if _read(path).process == own:
                path.unlink()


def find_process(
    file: Path,
    instance_id: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    url: str | None = None,
) -> ProcessRecord:
    """Return the process that runs with ``file``, of several the one named. Blocks for files.

    It is named by its ``instance_id``, or by the ``url`` of its API. Where one is known to run,
    those of other containers, of which that cannot be told, are not meant.

    Raises:
        NoRecordError: there is no record of such a process.
        SeveralProcessesError: there are several, and none was named.
        UnreachableError: it ended without a word, or its record cannot be read.
    """
    prefix = _prefix(os.path.abspath(file))  # noqa: PTH100 - as the file's path is read in config.origin
    found: dict[tuple[int, str, str], ProcessRecord] = {}
    unreadable: list[str] = []
    folders = _folders(environ)
    for path in _paths(folders, prefix, unreadable):
        try:
            record = _read(path)
        except (OSError, ValueError) as error:
            unreadable.append(_unreadable(path, error))
        else:
            found.setdefault(record.process, record)
    records = [
        record
        for record in found.values()
        if instance_id in {None, record.instance_id} and url in {None, record.url}
    ]
    running = [record for record in records if record.runs]
    namespace = _namespace()
    running = [record for record in running if record.namespace == namespace] or running
    if len(running) > 1:
        names = ", ".join(f"{each.instance_id} (process {each.pid})" for each in running)
        raise SeveralProcessesError(
            f"several processes run with {file}: {names}; name one of them by its address, --url"
        )
    if running:
        return running[0]
    if unreadable:
        raise UnreachableError("; ".join(unreadable))
    if records:
        raise UnreachableError(
            f"the process of {file}, {records[0].pid}, does not run any more; start it with "
            f"headrace run -c {file}"
        )
    raise NoRecordError(
        f"no process of {file} left a record in {' or '.join(map(str, folders))}; start it with "
        f"headrace run -c {file}, or give this command the STATE_DIRECTORY that it has"
    )


def _paths(folders: Iterable[Path], prefix: str, unreadable: list[str]) -> Iterator[Path]:
    for folder in folders:
        try:
            paths = sorted(folder.iterdir()) if _trusted(folder) else []
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unreadable.append(_unreadable(folder, error))
            continue
        yield from (path for path in paths if path.name.startswith(prefix))


def _read(path: Path) -> ProcessRecord:
    """Read a record; raises OSError or ValueError where that is none."""
    values = json.loads(path.read_text(encoding="utf-8"))
    try:
        return ProcessRecord(
            **{**values, "pid": int(values["pid"]), "url": str(values["url"])},
        )
    except (TypeError, LookupError) as error:
        raise ValueError("it is not what a process of this version writes") from error


def _unreadable(path: Path, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else "it is damaged"
    return (
        f"{path} cannot be read: {reason}; run this as the process's user, or restart the process"
    )


def _folders(environ: Mapping[str, str]) -> tuple[Path, Path]:
    """Return where records are looked for: the usual folder, and the one in its place."""
    fallback = Path(f"{FALLBACK}{os.getuid()}")
    try:
        return default_state_dir(environ) / RECORDS, fallback
    except RuntimeError:
        return fallback, fallback


def _trusted(folder: Path) -> bool:
    """Return whether no other user can have put a record into a folder that all may create."""
    if not str(folder).startswith(FALLBACK):
        return True
    status = folder.lstat()
    own = S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return own and not status.st_mode & _OTHERS_WRITE


def _prefix(file: str) -> str:
    """Return what names the file on this host: folders for state may be those of several hosts."""
    return f"{sha256(os.fsencode(f'{socket.gethostname()}:{file}')).hexdigest()[:16]}."


def start_of(pid: int) -> str:
    """Return what tells a process from later ones of its id, nothing where that is not known.

    It may be kept. On Linux psutil's time of the start may not: it is another one after the clock
    was set, and what is here is not.
    """
    return _start_by_proc(pid) if sys.platform == "linux" else _start_by_psutil(pid)


def _start_by_proc(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{fields[_STARTED].decode()}"
    except (OSError, ValueError, IndexError):
        return ""


def _start_by_psutil(pid: int) -> str:
    import psutil  # noqa: PLC0415 - takes as long to import as all that health needs

    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""


def _namespace() -> str:
    """Return where the ids of processes count as here, nothing where there is one such place."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
