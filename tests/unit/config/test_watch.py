from __future__ import annotations

import os
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.config import ReloadConfig
from headrace.config.watch import FileWatcher, folders_of
from headrace.core.clock import Deadline
from headrace.core.files import digest
from headrace.devstack.wait import wait_for
from headrace.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Seconds after which a test gives up.
PATIENCE = 10.0


class Watched:
    """Files with the digests of what was read of them last, and who tells of others."""

    def __init__(self, *files: Path) -> None:
        self.read = {file: digest(file) for file in files}
        self.told: SimpleQueue[None] = SimpleQueue()
        self.looks = 0

    def files(self) -> dict[Path, str]:
        """Return what was read; twice when the watch has begun."""
        self.looks += 1
        return self.read

    def __call__(self) -> None:
        """Read the files, as a reload does."""
        self.read = {file: digest(file) for file in self.read}
        self.told.put(None)

    def wait(self, content: str) -> None:
        """Wait until the first file was read with this content."""
        file = next(iter(self.read))

        assert wait_for(
            lambda: file.read_text(encoding="utf-8") == content and self.read[file] == digest(file),
            Deadline.after(PATIENCE),
        )

    @property
    def times(self) -> int:
        """How often a change was told."""
        return self.told.qsize()


@contextmanager
def watching(*files: Path, polling: bool = False) -> Iterator[Watched]:
    """Watch files, and wait until that has begun."""
    watched = Watched(*files)
    settings = ReloadConfig.model_validate({"polling": polling, "debounce": "50ms"})
    watcher = FileWatcher(settings, watched.files, watched)
    watcher.start()
    assert wait_for(lambda: watched.looks > 2, Deadline.after(PATIENCE))
    try:
        yield watched
    finally:
        assert watcher.stop(Deadline.after(PATIENCE))


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let watchers lose no time."""
    monkeypatch.setattr("headrace.config.watch._LOOK_MS", 50)
    monkeypatch.setattr("headrace.config.watch._POLL_INTERVAL", 0.05)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file in a folder of its own."""
    made = tmp_path / "config" / "headrace.yaml"
    made.parent.mkdir()
    made.write_text("one", encoding="utf-8")
    return made


def rewrite(file: Path) -> None:
    """Write as some editors do: empty the file, then fill it in pieces."""
    file.write_text("", encoding="utf-8")
    with file.open("a", encoding="utf-8") as stream:
        for piece in ("t", "w", "o"):
            stream.write(piece)
            stream.flush()


def rename(file: Path) -> None:
    """Write as other editors and deployments do: another file takes the name."""
    other = file.with_name(".headrace.yaml.swp")
    other.write_text("two", encoding="utf-8")
    other.replace(file)


@pytest.mark.parametrize("change", [rewrite, rename])
@pytest.mark.parametrize("polling", [False, True])
def test_a_change_is_told_once_it_is_complete(
    file: Path, change: Callable[[Path], None], *, polling: bool
) -> None:
    """The watch works for each way of writing, by notification and by polling."""
    with watching(file, polling=polling) as watched:
        change(file)
        watched.wait("two")
        assert watched.times == 1


def test_a_change_before_the_watch_began_is_told(file: Path) -> None:
    """A change between the reading and the watch is not missed."""
    watched = Watched(file)
    file.write_text("two", encoding="utf-8")
    watcher = FileWatcher(ReloadConfig(), watched.files, watched)
    watcher.start()
    watched.wait("two")
    assert watcher.stop(Deadline.after(PATIENCE))


def test_a_mounted_config_map_is_followed(tmp_path: Path) -> None:
    """Kubernetes exchanges the target of a link on the way; the file's own link stays."""
    for name, text in (("..1", "one"), ("..2", "two"), ("..3", "three")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "headrace.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "..data").symlink_to("..1")
    file = tmp_path / "headrace.yaml"
    file.symlink_to("..data/headrace.yaml")
    with watching(file) as watched:
        for name, text in (("..2", "two"), ("..3", "three")):
            (tmp_path / "..data_tmp").symlink_to(name)
            (tmp_path / "..data_tmp").replace(tmp_path / "..data")
            watched.wait(text)
        assert watched.times == 2


def test_further_files_are_watched_as_soon_as_they_are_named(file: Path, tmp_path: Path) -> None:
    """A file in another folder counts, also one that comes to be named meanwhile."""
    secret = tmp_path / "secrets" / "password"
    secret.parent.mkdir()
    secret.write_text("one", encoding="utf-8")
    with watching(file) as watched:
        watched.read = {secret: digest(secret), file: digest(file)}
        secret.write_text("two", encoding="utf-8")
        watched.wait("two")


def test_other_files_and_touches_tell_nothing(file: Path) -> None:
    """Only content counts: a neighbour's, or another time of modification, does not."""
    with watching(file) as watched:
        file.with_name("other").write_text("x", encoding="utf-8")
        file.touch()
        file.write_text("two", encoding="utf-8")
        watched.wait("two")
        assert watched.times == 1


def test_a_file_that_goes_and_comes_back_is_told(file: Path) -> None:
    """A folder that is exchanged as a whole is followed, too."""
    with watching(file) as watched:
        file.unlink()
        file.parent.rmdir()
        assert watched.told.get(timeout=PATIENCE) is None
        file.parent.mkdir()
        file.write_text("two", encoding="utf-8")
        watched.wait("two")


def test_a_folder_that_is_made_again_at_once_is_followed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder of the name that was watched takes a watch of its own."""
    inner = Watched.__call__

    def make_again(watched: Watched) -> None:
        file.parent.mkdir(exist_ok=True)
        inner(watched)

    monkeypatch.setattr(Watched, "__call__", make_again)
    with watching(file) as watched:
        file.unlink()
        file.parent.rmdir()
        assert watched.told.get(timeout=PATIENCE) is None
        file.write_text("two", encoding="utf-8")
        watched.wait("two")


def test_a_system_without_watches_left_is_asked_again_and_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is logged, and files are looked at from then on."""

    def refuse(*_: object, **__: object) -> object:
        raise OSError("no space left for watches")

    monkeypatch.setattr("watchfiles.watch", refuse)
    with capture_logs() as logs, watching(file) as watched:
        file.write_text("two", encoding="utf-8")
        watched.wait("two")
    assert [entry["event"] for entry in logs] == ["config_watch_failed"]


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    """Links that lead nowhere are given up."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert folders_of(tmp_path / "a" / "file") == {tmp_path}


def test_a_reverted_change_is_told_when_it_comes_again(file: Path) -> None:
    """A content counts as told only until the loaded one is restored."""
    told: list[None] = []
    watcher = FileWatcher(ReloadConfig(), lambda: {file: "one"}, lambda: told.append(None))
    for content in ("two", "one", "two"):
        watcher._report_changes({file: content})
    assert len(told) == 2


@pytest.mark.parametrize("polling", [False, True])
def test_a_file_that_is_being_written_is_not_told(
    file: Path, monkeypatch: pytest.MonkeyPatch, *, polling: bool
) -> None:
    """It differs from look to look; it is told when two looks in a row saw the same."""
    contents = ["one", "t", "tw", "two", "two"]
    seen: list[str] = []
    told: SimpleQueue[int] = SimpleQueue()

    def look(_: Path) -> str:
        seen.append(contents[min(len(seen), len(contents) - 1)])
        return seen[-1]

    monkeypatch.setattr("headrace.config.watch.digest", look)
    settings = ReloadConfig.model_validate({"polling": polling, "debounce": "50ms"})
    watcher = FileWatcher(settings, lambda: {file: "one"}, lambda: told.put(len(seen)))
    watcher.start()
    # whether the system tells of these makes no difference to what is seen
    while len(seen) < len(contents):
        file.write_text("x", encoding="utf-8")
    assert told.get(timeout=PATIENCE) == len(contents)
    assert watcher.stop(Deadline.after(PATIENCE))
    assert told.empty()


def test_a_fifo_in_the_place_of_a_file_is_told_and_does_not_end_the_watch(file: Path) -> None:
    """The watch does not wait for the FIFO's writer, and reports the next file as well."""
    with watching(file) as watched:
        file.unlink()
        os.mkfifo(file)
        assert watched.told.get(timeout=PATIENCE) is None
        file.unlink()
        file.write_text("two", encoding="utf-8")
        watched.wait("two")


def test_a_read_that_hangs_can_be_seen(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread takes no turn; once the read comes back it does."""
    hanging, goes_on, clock = Event(), Event(), FakeClock()

    def hang(_: Path) -> str:
        hanging.set()
        assert goes_on.wait(PATIENCE)
        return ""

    monkeypatch.setattr("headrace.config.watch.digest", hang)
    watcher = FileWatcher(ReloadConfig(), lambda: {file: ""}, lambda: None, clock)
    watcher.start()
    assert hanging.wait(PATIENCE)
    assert watcher.stalled() is None
    clock.advance(60.0)
    assert watcher.stalled() == 60.0
    assert any(call.endswith(" hang") for call in watcher.calls())
    goes_on.set()
    assert wait_for(lambda: watcher.stalled() is None, Deadline.after(PATIENCE))
    assert watcher.stop(Deadline.after(PATIENCE))
