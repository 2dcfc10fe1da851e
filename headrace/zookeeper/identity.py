"""The process's identity across restarts: an instance id, locked, with its session's credentials.

In ``<state directory>/<instance id>/`` lie ``lock``, locked while the process lives and naming
its pid, and ``session.json``, the id and password of its ZooKeeper session, readable by its owner
alone: who has them can take the session over. A clean close removes ``session.json``. When a
start finds one that was written on this host since it was booted, its writer crashed, because the
lock is ours now; the session it names is closed before a new one begins. The lock tells nothing of
a process on another machine, so what was written there is left to its own end.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from pathlib import Path
from typing import IO, TYPE_CHECKING

import structlog

from headrace.core.errors import ConfigError, StartError
from headrace.core.files import write_whole
from headrace.zookeeper.client import Credentials
from headrace.zookeeper.errors import OutcomeUnknownError

if TYPE_CHECKING:
    from headrace.zookeeper.nodes import NodeStat
    from headrace.zookeeper.protocol import Session


def is_ours(session: Session, path: str, stat: NodeStat) -> bool:
    """Return whether a node that was read lives and dies with the present session.

    Raises OutcomeUnknownError where the connection broke after the reading: which session comes
    next is not known then, and "not ours" would give up what is ours.
    """
    present = session.session_id
    if present is None:
        raise OutcomeUnknownError(path, "the connection broke after the node was read")
    return stat.owner_session == present


log = structlog.get_logger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Linux draws it at each boot; containers show that of the machine they run on."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Identity:
    """The lock on one instance id and the file with its session.

    ``acquire`` and ``release`` are for the owner; the rest is called by the session under its own
    lock. File access blocks; nothing waits for the lock.
    """

    def __init__(self, state_directory: Path, instance_id: str) -> None:
        if not _NAME.fullmatch(instance_id):
            problem = (
                f"instance_id: {instance_id!r} cannot name a member; letters, digits, '.', '_' and "
                "'-' are accepted, at most 200, beginning with a letter or digit"
            )
            raise ConfigError([problem])
        self.instance_id = instance_id
        self.directory = state_directory / instance_id
        self._lock_path = self.directory / "lock"
        self._session_path = self.directory / "session.json"
        self._lock: IO[str] | None = None

    def acquire(self) -> None:
        """Lock the instance id; raises StartError when another process of this host has it.

        Does nothing where we have it. The operating system drops the lock with the process,
        however that ends.
        """
        if self._lock is not None:
            return
        # what channels keep of their records is here as well
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self._lock_path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise StartError(
                f"instance_id {self.instance_id!r} is in use by process {holder}, which holds "
                f"{self._lock_path}; stop that process or give this one another instance_id"
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def release(self) -> None:
        """Release the instance id. Close the session first."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def load(self) -> Credentials | None:
        """Return the credentials that a crashed process left, None when there are none to use.

        Those of another host, or of before a reboot, are none: a volume that was moved or cloned
        may bring them while their process lives on.
        """
        try:
            fields = json.loads(self._session_path.read_text(encoding="utf-8"))
            found = Credentials(int(fields["session_id"], 16), bytes.fromhex(fields["password"]))
            host, boot_id = fields.get("host"), fields.get("boot_id")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            # without them the start only has to wait for the old session's time-out
            log.warning("session_file_unusable", path=str(self._session_path), reason=repr(error))
            return None
        if boot_id is None or (host, boot_id) != (socket.gethostname(), _boot_id()):
            log.warning(
                "session_left_to_expire",
                session=f"{found.session_id:#x}",
                path=str(self._session_path),
                host=host,
                boot_id=boot_id,
            )
            return None
        return found

    def store(self, credentials: Credentials) -> None:
        """Keep the credentials of the present session."""
        fields = {
            "session_id": f"{credentials.session_id:#x}",
            "password": credentials.password.hex(),
            "host": socket.gethostname(),
            "boot_id": _boot_id(),
        }
        write_whole(self._session_path, json.dumps(fields))

    def clear(self) -> None:
        """Delete the stored credentials: the session was closed."""
        self._session_path.unlink(missing_ok=True)


def _boot_id() -> str | None:
    """Return what tells this boot of this machine from all others, None where nothing does."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
