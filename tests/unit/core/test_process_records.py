"""Records of processes, and what becomes of a look for them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest

from headrace.core import processes
from headrace.core.errors import NoRecordError, SeveralProcessesError, UnreachableError
from headrace.core.processes import ProcessRecord, find_process, forget


class Home:
    """Hold a user's home, with a configuration file that is not read."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "headrace.yaml"
        self.environ = {"HOME": str(directory / "home")}
        self.usual = directory / "home" / ".local" / "state" / "headrace"
        self.fallback = Path(f"{processes.FALLBACK}{os.getuid()}")

    def record(self, **changes: Any) -> ProcessRecord:
        """Describe this process, or one that differs."""
        own = ProcessRecord.of_this_process(self.file, "one", "http://127.0.0.1:1", "t", None)
        return replace(own, **changes)

    def find(self, instance_id: str | None = None) -> ProcessRecord:
        """Look for the process of the file."""
        return find_process(self.file, instance_id, self.environ)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home of its own, and a fallback that is not the user's."""
    monkeypatch.setattr(processes, "FALLBACK", str(tmp_path / "fallback-"))
    return Home(tmp_path)


def test_a_record_is_found_by_the_path_of_the_file(home: Home) -> None:
    """The file need not even be there, and a way through another folder is the same path."""
    record = home.record()
    record.leave(home.usual, home.environ)
    assert home.find() == record
    home.file = home.file.parent / "sub" / ".." / home.file.name
    assert home.find() == record
    home.file = home.file.parent / "other.yaml"
    with pytest.raises(NoRecordError, match=r"other\.yaml left a record in"):
        home.find()


def test_a_record_is_for_its_owner_alone(home: Home) -> None:
    """It has a token, which neither another user nor a log may see."""
    (path,) = home.record().leave(home.usual, home.environ)
    assert S_IMODE(path.stat().st_mode) == 0o600
    assert S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "'t'" not in repr(home.record())


def test_a_state_dir_out_of_the_file_is_not_needed(home: Home, tmp_path: Path) -> None:
    """A state_dir of the file alone leaves a record in the usual folder as well."""
    record = home.record()
    written = record.leave(tmp_path / "elsewhere", home.environ)
    assert [path.parent for path in written] == [
        tmp_path / "elsewhere" / "processes",
        home.usual / "processes",
    ]
    assert home.find() == record
    home.environ = {"STATE_DIRECTORY": str(tmp_path / "elsewhere")}
    assert home.find() == record


def test_a_usual_folder_that_cannot_be_written_has_another_in_its_place(
    home: Home, tmp_path: Path
) -> None:
    """A container with a file system for reading has a folder for temporary files all the same."""
    home.usual.parent.mkdir(parents=True)
    home.usual.write_text("no folder")
    written = home.record().leave(tmp_path / "elsewhere", home.environ)
    assert written[1].parent == home.fallback
    assert home.find().pid == os.getpid()


def test_a_folder_that_others_may_write_to_is_neither_read_nor_written(
    home: Home, tmp_path: Path
) -> None:
    """In a shared folder another user could leave a record that leads to a process of theirs."""
    home.usual.parent.mkdir(parents=True)
    home.usual.write_text("no folder")
    written = home.record().leave(tmp_path / "elsewhere", home.environ)
    home.fallback.chmod(0o777)
    with pytest.raises(NoRecordError):
        home.find()
    written = home.record().leave(tmp_path / "elsewhere", home.environ)
    assert [path.parent for path in written] == [tmp_path / "elsewhere" / "processes"]


def test_a_state_dir_that_cannot_be_written_is_an_error(home: Home, tmp_path: Path) -> None:
    """The process has to write there anyway."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        home.record().leave(tmp_path / "file", home.environ)


def test_a_process_that_ended_without_a_word_is_named(home: Home) -> None:
    """The record is left, and its process id does not run."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    home.record(pid=ended.pid).leave(home.usual, home.environ)
    with pytest.raises(UnreachableError, match=f"{ended.pid}, does not run any more"):
        home.find()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_another_process_of_the_same_id_is_none_of_ours(home: Home) -> None:
    """After a restart of the machine, ids begin anew."""
    boot, _, ticks = home.record().started.partition(":")
    home.record(started=f"{boot}:{int(ticks) - 1}").leave(home.usual, home.environ)
    with pytest.raises(UnreachableError, match="does not run any more"):
        home.find()


def test_another_process_of_the_same_id_is_told_without_proc(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other systems than Linux, by the time that psutil says."""
    monkeypatch.setattr(sys, "platform", "darwin")
    own = home.record()
    assert own.runs
    assert not replace(own, started=str(float(own.started) - 60)).runs


def test_ids_of_another_container_say_nothing(home: Home) -> None:
    """Only a request shows whether a process of another container runs."""
    home.record(pid=999_999_999, namespace="pid:[1]").leave(home.usual, home.environ)
    assert home.find().pid == 999_999_999


def test_the_process_of_one_s_own_container_is_meant(home: Home) -> None:
    """Every container has a process 1: the record of a former container hides none."""
    for former, own in (("a", "b"), ("b", "a")):
        home.record(instance_id=former, namespace="pid:[1]").leave(home.usual, home.environ)
        home.record(instance_id=own).leave(home.usual, home.environ)
        assert home.find().instance_id == own
        assert home.find(former).namespace == "pid:[1]"


def test_several_of_other_containers_are_several(home: Home) -> None:
    """Equal ids of other containers do not make two records one."""
    home.record(instance_id="a", namespace="pid:[1]", pid=1).leave(home.usual, home.environ)
    home.record(instance_id="b", namespace="pid:[2]", pid=1).leave(home.usual, home.environ)
    with pytest.raises(SeveralProcessesError, match=r"a \(process 1\), b \(process 1\)"):
        home.find()


def test_one_process_with_records_in_two_folders_is_one(home: Home) -> None:
    """The usual folder may become writable after the fallback was used."""
    (left,) = home.record().leave(home.usual, home.environ)
    home.fallback.mkdir(mode=0o700)
    (home.fallback / left.name).write_bytes(left.read_bytes())
    assert home.find() == home.record()


def test_a_process_removes_records_of_those_that_ended(home: Home) -> None:
    """Records of the same file whose process ended are removed, but not other containers'."""
    ended = home.record(pid=999_999_999, instance_id="ended").leave(home.usual, home.environ)
    elsewhere = home.record(pid=999_999_999, instance_id="elsewhere", namespace="pid:[1]")
    other = home.record(pid=999_999_999, file=str(home.file.with_name("other.yaml")))
    kept = [*elsewhere.leave(home.usual, home.environ), *other.leave(home.usual, home.environ)]
    kept += home.record(instance_id="runs").leave(home.usual, home.environ)
    damaged = kept[0].with_name(kept[0].name.replace("elsewhere", "damaged"))
    damaged.write_text("")
    own = home.record().leave(home.usual, home.environ)
    assert not ended[0].exists()
    assert all(path.exists() for path in [*kept, *own, damaged])


def test_two_processes_of_one_file_are_told_apart_by_name(home: Home) -> None:
    """Processes with an instance_id from the environment are named if no name is given."""
    home.record(pid=1, started="").leave(home.usual, home.environ)
    home.record(instance_id="two").leave(home.usual, home.environ)
    with pytest.raises(SeveralProcessesError, match=rf"one \(process 1\), two.*{os.getpid()}"):
        home.find()
    assert home.find("two").pid == os.getpid()
    with pytest.raises(NoRecordError):
        home.find("three")


def test_one_of_two_that_still_runs_is_meant(home: Home) -> None:
    """The record of a dead process of another name does not hide the running one."""
    home.record(pid=999_999_999, instance_id="former").leave(home.usual, home.environ)
    home.record().leave(home.usual, home.environ)
    assert home.find().pid == os.getpid()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": 7}', "null", "\udcff"])
def test_a_damaged_record_is_named(home: Home, text: str) -> None:
    """The message has the damaged file, and no process is guessed."""
    (path,) = home.record().leave(home.usual, home.environ)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnreachableError, match=f"{path} cannot be read: it is damaged"):
        home.find()


def test_a_record_with_more_or_less_in_it_is_of_another_version(home: Home) -> None:
    """It is as good as damaged, and a restart of the process writes another one."""
    (path,) = home.record().leave(home.usual, home.environ)
    for values in (
        {**asdict(home.record()), "more": 1},
        {k: v for k, v in asdict(home.record()).items() if k != "token"},
    ):
        path.write_text(json.dumps(values))
        with pytest.raises(UnreachableError, match="restart the process"):
            home.find()


def test_the_record_of_another_user_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the folder and the account that may read it."""
    (path,) = home.record().leave(home.usual, home.environ)

    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(
        UnreachableError, match=f"{path.parent} cannot be read: Permission denied; run this as"
    ):
        home.find()


def test_a_process_removes_its_own_record_only(home: Home) -> None:
    """A later process of the name has written another one by then."""
    written = home.record().leave(home.usual, home.environ)
    for later in ({"pid": 1}, {"namespace": "pid:[1]"}, {"started": "later"}):
        home.record(**later).leave(home.usual, home.environ)
        forget(written)
        assert written[0].exists()
    home.record().leave(home.usual, home.environ)
    forget(written)
    assert not written[0].exists()
    forget(written)


def test_hosts_that_share_a_folder_have_records_of_their_own(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same path on another host is another file."""
    home.record().leave(home.usual, home.environ)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    with pytest.raises(NoRecordError):
        home.find()
