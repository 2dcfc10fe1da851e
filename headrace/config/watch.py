"""The thread that notices when files are other than they were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.files import digest
from headrace.core.stacks import stack_of
from headrace.core.supervision import PeriodicThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from headrace.config.models.root import ReloadConfig
    from headrace.core.clock import Clock

log = structlog.get_logger(__name__)

#: Milliseconds until the thread looks whether other files are to be watched.
_LOOK_MS = 500

#: Milliseconds for which the system collects changes. What counts is the content, later.
_COLLECT_MS = 50

#: Seconds between two looks at the files where the system tells nothing.
_POLL_INTERVAL = 1.0

#: Seconds beside twice ``reload.debounce`` within which the thread takes another turn, unless a
#: read hangs.
_STALL_TIMEOUT = 30.0

#: Links on the way to a file that are followed at most: as many as Linux does.
_MOST_LINKS = 40


def folders_of(path: Path) -> set[Path]:
    """Return the folders in which something changes when ``path`` comes to have other content.

    That is the one it is in, and each one with a link on the way: a file is exchanged by another
    one of its name as well as by another target of a link, as Kubernetes does it.
    """
    found: set[Path] = set()
    rest = [path.absolute()]
    for _ in range(_MOST_LINKS):
        if not rest:
            break
        at = rest.pop()
        found.add(_existing(at.parent))
        link = next((p for p in (at, *at.parents) if p.is_symlink()), None)
        if link is not None:
            found.add(_existing(link.parent))
            rest.append(link.parent / link.readlink() / at.relative_to(link))
    return found


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.is_dir())


class FileWatcher(PeriodicThread):
    """Calls ``changed`` when files have other content than they were read with.

    ``read`` returns the files with the digests of what was read; the thread asks for them again
    and again. Files are told of once they were left alone for ``reload.debounce``: what is the same
    in two looks that lie so far apart is complete. ``start`` and ``stop`` are for the owner.
    """

    def __init__(
        self,
        settings: ReloadConfig,
        read: Callable[[], Mapping[Path, str]],
        changed: Callable[[], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__("file-watcher")
        self.settings = settings
        self._read = read
        self._changed = changed
        self._polls = settings.polling
        self._reported: Mapping[Path, str] = {}
        self._clock = clock
        self._last_beat = clock.monotonic()

    def stalled(self) -> float | None:
        """Return for how many seconds a read hangs, None while the thread goes on.

        Any thread.
        """
        silent = self._clock.monotonic() - self._last_beat
        return silent if silent > _STALL_TIMEOUT + 2 * self.settings.debounce else None

    def calls(self) -> list[str]:
        """Return the calls that the thread is in. Any thread."""
        return stack_of(self._thread.ident)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._polls:
                self._poll()
                return
            folders = self._folders()
            try:
                self._watch(folders)
            except Exception as error:
                # the system may have no watches left, or a folder is gone by now
                log.exception(
                    "config_watch_failed", folders=sorted(map(str, folders)), error=str(error)
                )
                self._polls = True

    def _folders(self) -> frozenset[Path]:
        self._last_beat = self._clock.monotonic()
        files: Iterable[Path] = self._read()
        return frozenset(folder for path in files for folder in folders_of(path))

    def _watch(self, folders: frozenset[Path]) -> None:
        """Check the files on each change, until the watch has to be set up again."""
        import watchfiles  # noqa: PLC0415 - only where files are watched

        begun = False
        for changes in watchfiles.watch(
            *folders,
            watch_filter=None,
            step=_COLLECT_MS,
            stop_event=self._stopping,
            rust_timeout=_LOOK_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
            force_polling=False,
            recursive=False,
            ignore_permission_denied=True,
        ):
            # what was written before the first yield may have been missed by the system's watches
            if changes or not begun:
                self._look_settled(self.settings.debounce)
            begun = True
            # after a change the folder may be another one of the same name
            if changes or self._folders() != folders:
                return

    def _poll(self) -> None:
        """Compare the files' content at intervals: modification times are too coarse."""
        interval = max(_POLL_INTERVAL, self.settings.debounce)
        while not self._stopping.wait(interval):
            self._look_settled(interval)

    def _look_settled(self, interval: float) -> None:
        """Check the files once they are the same at the beginning and the end of an interval."""
        before, now = None, self._digests()
        while now not in (before, self._read()):
            if self._stopping.wait(interval):
                return
            before, now = now, self._digests()
        self._report_changes(now)

    def _digests(self) -> dict[Path, str]:
        found = {path: digest(path) for path in self._read()}
        self._last_beat = self._clock.monotonic()
        return found

    def _report_changes(self, now: Mapping[Path, str]) -> None:
        """Report each content that was not read yet, once."""
        if now == self._read():
            # what was told and taken back before it was read is a change when it is told again
            self._reported = {}
        elif now != self._reported:
            self._reported = now
            self._changed()
