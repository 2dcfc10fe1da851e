"""The commands, against a served API."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from headrace.channel.pauses import PauseReason
from headrace.cli import app
from headrace.config import ChangeKind, ConfigChange, ReloadEffect, load
from headrace.controller.reports import PendingChange, ReloadOutcome, ReloadReport
from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError, ResultMisfitError
from headrace.core.processes import ProcessRecord
from headrace.ops.admin.auth import Folder
from headrace.ops.admin.client import TOKEN, ClientOptions, find
from headrace.ops.admin.server import AdminServer
from headrace.processors import BatchResponse
from headrace.testing import running
from tests.unit.channel.in_memory import P0, P1, committed, eventually, filled_broker
from tests.unit.channel.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.records import Batch
    from tests.unit.ops.admin.scene import Scene


class Desk:
    """An operator at a shell, with the configuration file of a process."""

    def __init__(self, scene: Scene, directory: Path, **admin: Any) -> None:
        self.scene = scene
        self.file = directory / "headrace.yaml"
        self.folder = Folder(directory / "state" / "member")
        channel = {"topics": ["events"], "group": "group", "sink": "a:b"}
        document: dict[str, Any] = {
            "instance_id": "member",
            "state_dir": str(directory / "state"),
            "admin": {"port": 0, **admin},
            "channels": {"member": {**channel, "processor": {"type": "simple"}}},
        }
        self.file.write_text(json.dumps(document))

    def run(self, *arguments: str, **environment: str) -> Result:
        """Run a command with the file."""
        return run(*arguments, "-c", str(self.file), **environment)


def run(*arguments: str, **environment: str) -> Result:
    """Run a command, without the log of the process that is in the same one here."""
    with capture_logs():
        return CliRunner(env=environment).invoke(app, arguments)


@pytest.fixture(scope="module")
def directory(stage: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder with the files of the process that is served in all tests."""
    directory = tmp_path_factory.mktemp("served")
    desk = Desk(stage, directory)
    stage.controller.config = load(desk.file)
    stage.process.file = desk.file
    server = AdminServer(stage.controller, stage.process, stage.deployment)
    yield directory
    assert server.close(Deadline.after(10))


@pytest.fixture
def desk(directory: Path, scene: Scene) -> Desk:
    """A served process and its file."""
    desk = Desk(scene, directory)
    scene.process.file = desk.file
    return desk


def _channel(desk: Desk) -> InboundKafkaChannel:
    return desk.scene.controller.channels["member"]


def test_the_status_is_a_table_for_people(desk: Desk) -> None:
    """Process, channel and partitions are there in words."""
    _channel(desk).pause(by="ann", note="the table is locked")
    result = desk.run("status")
    assert result.exit_code == 0
    for words in ("member", "ZooKeeper connected", "group group", "events-0", "paused (operator"):
        assert words in result.output
    assert "the table is locked" in result.output


def test_the_status_is_json_for_scripts(desk: Desk) -> None:
    """The document of the API is printed, with the channel that was chosen."""
    found = json.loads(desk.run("status", "member", "--json").output)
    assert found["process"]["instance_id"] == "member"
    assert [channel["name"] for channel in found["channels"]] == ["member"]


def test_status_shows_rejects_until_they_are_acknowledged(desk: Desk) -> None:
    """Rejects are acknowledged by count, then all; the command says how many it took, if any."""
    metrics = desk.scene.controller.metrics
    assert desk.run("acknowledge").exit_code == 0
    metrics.dead_lettered.labels("member", "events").inc(5)
    metrics.skipped.labels("member", "events", "undecodable").inc(2)
    assert "not acknowledged: dead letters 5 · skipped records 2" in desk.run("status").output
    done = desk.run("acknowledge", "member", "--dead-letters", "4", "--skipped", "0")
    assert (done.exit_code, done.output) == (0, "member: acknowledged 4 dead letters\n")
    assert "not acknowledged: dead letters 1 · skipped records 2" in desk.run("status").output
    assert desk.run("acknowledge").output == (
        "member: acknowledged 1 dead letters, 2 skipped records\n"
    )
    assert "not acknowledged" not in desk.run("status").output
    nothing = desk.run("acknowledge").output
    assert nothing == "member: acknowledged nothing, as there is nothing open\n"
    as_json = json.loads(desk.run("acknowledge", "--json").output)
    assert as_json["acknowledged"] == {"dead_letters": 0, "skipped_records": 0, "rejected_facts": 0}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["another"], 2, "another"),
        (["--dead-letters", "-1"], 2, "--dead-letters"),
        (["--skipped", "two"], 2, "--skipped"),
    ],
)
def test_acknowledge_refuses_an_unknown_channel_or_a_wrong_number(
    desk: Desk, arguments: list[str], code: int, said: str
) -> None:
    """An unknown channel and a wrong number are refused, each with its exit code and reason."""
    refused = desk.run("acknowledge", *arguments)
    assert refused.exit_code == code, refused.output
    assert said in refused.output


def test_a_pause_and_its_end_take_one_command_each(desk: Desk) -> None:
    """The only channel need not be named; who paused it stands in the status."""
    result = desk.run("pause", "--reason", "lunch", "--for", "30m")
    assert (result.exit_code, result.output.startswith("member is paused until")) == (0, True)
    (pause,) = _channel(desk).pauses
    assert pause.note == "lunch"
    assert "@" in pause.by
    assert desk.run("resume", "member").output == "member resumed\n"
    assert _channel(desk).pauses == ()
    assert desk.run("resume").output == "member had no such pause\n"


def test_another_persons_pause_is_told_and_ends_by_name(desk: Desk) -> None:
    """A pause says what it met; a resume ends one's own, and another one with --of."""
    _channel(desk).pause(by="ann", note="the table is locked")
    paused = desk.run("pause", "--for", "30m").output
    assert paused.endswith("; paused by ann without an end, too\n")
    again = desk.run("pause").output
    assert again.startswith("member is paused; in place of your pause until ")
    shorter = desk.run("pause", "--for", "30m")
    assert (shorter.exit_code, "without an end" in shorter.output) == (1, True)
    assert "--shorten" in shorter.output
    assert desk.run("pause", "--for", "30m", "--shorten").exit_code == 0
    assert desk.run("resume").output == "member resumed; others go on: operator by ann\n"
    refused = desk.run("resume")
    assert (refused.exit_code, "--of 'ann'" in refused.output) == (1, True)
    assert desk.run("resume", "--of", "ann").output == "member resumed\n"


def test_a_pause_that_is_not_true_in_time_has_a_code_of_its_own(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 4 tells that the pause was begun, but something is being processed."""
    monkeypatch.setattr(type(_channel(desk)), "wait_paused", lambda *_: False)
    result = desk.run("pause", "--partition", "events:1", "--wait", "1s")
    assert result.exit_code == 4
    assert result.output == ("events:1 is being paused; something is still being processed\n")


def test_an_operators_resume_names_the_pauses_that_go_on(desk: Desk) -> None:
    """The output names the pause by which delivery still rests."""
    _channel(desk).pause(PauseReason.DOWNSTREAM, by="processor")
    desk.run("pause", "--wait", "0")
    assert desk.run("resume").output == ("member resumed; others go on: downstream by processor\n")
    assert desk.run("resume", "--downstream").output == "member resumed\n"


def test_resume_misfit_has_resting_partitions_tried_again(directory: Path, stage: Scene) -> None:
    """The command reaches the partitions: one that is named, then all; they go on once it fits."""
    is_mended = False

    def answer(_: Batch) -> BatchResponse:
        if not is_mended:
            raise ResultMisfitError("column 'id' is text")
        return BatchResponse.advance()

    recorder, scene = Recorder(answer), stage.reset(filled_broker())
    desk = Desk(scene, directory)
    scene.process.file = desk.file

    def rests(*numbers: int) -> bool:
        return {
            each.partition.partition
            for each in _channel(desk).pauses
            if each.reason is PauseReason.MISFIT and each.partition is not None
        } == {*numbers}

    with running(scene.controller.add(recorder)):
        eventually(lambda: rests(0, 1))
        assert "column 'id' is text" in desk.run("status").output
        assert desk.run("resume").output == (
            "member had no such pause; others go on: misfit by headrace, misfit by headrace\n"
        )
        tried = [len(recorder.delivered(number)) for number in (0, 1)]
        assert desk.run("resume", "--misfit", "--partition", "events:1").exit_code == 0
        recorder.wait(lambda: len(recorder.delivered(1)) == tried[1] + 1)
        eventually(lambda: rests(0, 1))
        assert len(recorder.delivered(0)) == tried[0]
        is_mended = True
        assert desk.run("resume", "--misfit").output == "member resumed\n"
        for partition in (P0, P1):
            assert committed(scene.controller.broker, partition, 10)
        assert desk.run("resume", "--misfit").output == "member had no such pause\n"


@pytest.mark.parametrize(
    "options", [["--downstream", "--misfit"], ["--misfit", "--of", "ann"]], ids=" ".join
)
def test_resume_refuses_options_of_several_pauses(desk: Desk, options: list[str]) -> None:
    """Each ends one pause; which was meant is not guessed."""
    refused = desk.run("resume", *options)
    assert refused.exit_code == 2
    assert "one pause ends at a time" in refused.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (ReloadOutcome.APPLIED, 0),
        (ReloadOutcome.UNCHANGED, 0),
        (ReloadOutcome.REJECTED, 1),
        (ReloadOutcome.PARTLY, 4),
        (ReloadOutcome.UNDER_WAY, 4),
    ],
)
def test_a_reload_prints_its_outcome_changes_and_reasons(
    desk: Desk, outcome: ReloadOutcome, code: int
) -> None:
    """The exit code tells applied, rejected and pending apart; changes and reasons are printed."""
    change = ConfigChange(
        ("channels", "member", "workers"), ChangeKind.CHANGED, 2, 3, ReloadEffect.IN_PLACE
    )
    desk.scene.deployment.report = ReloadReport(
        "ann",
        5.0,
        outcome,
        ("the file is empty",),
        (change,),
        (PendingChange(change, "paused", 1.0),),
    )
    result = desk.run("reload")
    assert result.exit_code == code
    assert result.stdout == (
        f"{outcome.value}\n  channels.member.workers: 2 -> 3\n"
        "  channels.member.workers is pending: paused\n"
    )
    assert result.stderr == "the file is empty\n"
    assert "@" in desk.scene.deployment.asked[0]


def test_a_stop_is_passed_on(desk: Desk) -> None:
    """The process is asked to stop, in somebody's name."""
    assert desk.run("stop", "--reason", "moving").exit_code == 0
    assert len(desk.scene.stops) == 1


def test_a_paused_partition_is_moved_and_named(desk: Desk) -> None:
    """One offset, or a target for all partitions of the channel: each is shown from where to."""
    desk.run("pause")
    assert desk.run("seek", "events:1:3").output == "events:1 from 10 to 3\n"
    assert desk.run("seek", "events:0", "--to", "shift-by:-2").output == "events:0 from 10 to 8\n"
    assert desk.run("seek", "member", "--to", "earliest").output == (
        "events:0 from 8 to 0\nevents:1 from 3 to 0\n"
    )


def test_a_seek_or_skip_that_is_not_possible_exits_with_1(desk: Desk) -> None:
    """A channel that runs, and a record that is done with: exit code 1 with what to do."""
    running = desk.run("seek", "events:1:3")
    assert (running.exit_code, "pause the channel member" in running.output) == (1, True)
    done = desk.run("skip", "events:1:3", "--reason", "no JSON")
    assert (done.exit_code, "10 is committed" in done.output) == (1, True)


def test_a_record_is_skipped_by_its_place(desk: Desk) -> None:
    """While delivery rests the skip stands in the status, with why and who."""
    desk.run("pause")
    desk.scene.controller.broker.produce(P0, b"poison")
    channel = _channel(desk)
    eventually(lambda: any(each.high_watermark == 11 for each in channel.partitions()))
    refused = desk.run("skip", "events:0:10", "--reason", "no JSON")
    assert (refused.exit_code, "no batch is out, and none has failed" in refused.output) == (
        1,
        True,
    )
    result = desk.run("skip", "events:0:10", "--reason", "no JSON", "--force")
    assert (result.exit_code, result.output) == (0, "events:0:10 is left out from now on\n")
    (skip,) = desk.scene.get("/api/v1/channels/member").json()["skips"]
    assert (skip["partition"], skip["offset"], skip["reason"]) == (0, 10, "no JSON")
    assert "@" in skip["by"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["pause", "membre"], 2, "did you mean member?"),
        (["status", "membre"], 2, "did you mean member?"),
        (["pause", "--partition", "events"], 2, "TOPIC:N"),
        (["pause", "--partition", "evens:0"], 2, "did you mean events?"),
        (["pause", "--partition", "events:7"], 1, "there is no partition events-7"),
        (["seek", "events:1"], 2, "TOPIC:PARTITION:OFFSET"),
        (["seek", "member", "--to", "yesterday"], 2, "earliest, latest"),
        (["skip", "events:1:x", "--reason", "-"], 2, "TOPIC:PARTITION:OFFSET"),
        (["skip", "events:1:3"], 2, "--reason"),
        (["pause", "--for", "soon"], 2, "is not a time such as"),
        (["pause", "--until", "2001-01-01"], 2, "over before it begins"),
        (["pause", "--until", "2001-01-01"], 2, "give a later time, or --for"),
        (["loglevel", "loud"], 2, "'loud' is not debug, info, warning, error or"),
        (["pause", "--wait", "10m"], 2, "--wait should be less than or equal to 300 seconds"),
        (["pause", "--for", "0"], 2, "--for should be greater than 0 seconds"),
        (["pause", "--for", "1m", "--until", "2100-01-01"], 2, "--until and --for exclude each"),
        (["skip", "events:1:3", "--reason", ""], 2, "--reason should have at least 1 character"),
        (["loglevel", "debug", "--logger", "a b"], 2, "--logger should match pattern"),
    ],
)
def test_mistakes_are_told_from_refusals(
    desk: Desk, arguments: list[str], code: int, words: str
) -> None:
    """A wrong argument exits with 2 and says what was meant; a refusal of the process, with 1."""
    result = desk.run(*arguments)
    assert (result.exit_code, words in result.output) == (code, True), result.output
    for unknown in ("Traceback", "body", "for_s", "wait_s", "/openapi.json", "/api/v1"):
        assert unknown not in result.output


def test_a_wrong_token_and_a_missing_one_are_told_apart(desk: Desk, tmp_path: Path) -> None:
    """A token of another process is wrong, and one that cannot be read is named with its file."""
    wrong = desk.run("stop", HEADRACE_TOKEN="another one, long enough")
    assert (wrong.exit_code, "is not that of the process" in wrong.output) == (1, True)
    missing = desk.run("stop", "--token-file", str(tmp_path / "absent"))
    assert (missing.exit_code, "absent cannot be read" in missing.output) == (1, True)
    assert desk.run("stop", "--token-file", str(desk.folder.token_file)).exit_code == 0


def test_a_token_file_that_is_a_fifo_is_refused(desk: Desk, tmp_path: Path) -> None:
    """The command does not read a FIFO: it would wait for a writer that may never come."""
    os.mkfifo(tmp_path / "token")
    result = desk.run("stop", "--token-file", str(tmp_path / "token"))
    assert result.exit_code == 1
    assert "token cannot be read (is no regular file)" in result.output
    assert desk.scene.stops == []


def test_reading_needs_no_token_that_is_readable(desk: Desk) -> None:
    """Another user of the machine sees the status, without the token's file."""
    assert desk.run("status", "--token-file", "/absent").exit_code == 0


def test_an_address_finds_the_process_from_anywhere(desk: Desk) -> None:
    """With the address and a token no configuration is needed."""
    address, token = desk.folder.read_address(), desk.folder.read_token()
    assert address is not None
    assert token is not None
    result = run("pause", "--json", HEADRACE_URL=address.url, HEADRACE_TOKEN=token)
    assert json.loads(result.output)["acknowledged"]


@pytest.fixture
def spoilt(desk: Desk) -> Iterator[Desk]:
    """The process, whose file nobody can use any more."""
    usable = desk.file.read_text()
    desk.file.write_text("channels: {a: [")
    yield desk
    desk.file.write_text(usable)


@pytest.mark.parametrize(
    "arguments",
    [
        ["health", "--ready"],
        ["status"],
        ["pause", "--wait", "0"],
        ["resume"],
        ["loglevel", "debug", "--logger", "headrace.none", "--for", "1s"],
        ["reload"],
        ["stop"],
    ],
)
def test_a_bad_file_takes_no_command_away(spoilt: Desk, arguments: list[str]) -> None:
    """The process goes on with what it read before, and so do all who ask it, with its token."""
    result = spoilt.run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_bad_file_takes_no_seek_and_no_skip_away(spoilt: Desk) -> None:
    """Seek and skip find what they name, whatever the file says now."""
    spoilt.run("pause")
    assert spoilt.run("seek", "events:1:3").output == "events:1 from 10 to 3\n"
    result = spoilt.run("skip", "events:1:4", "--reason", "no JSON", "--force")
    assert (result.exit_code, result.output) == (0, "events:1:4 is left out from now on\n")


@pytest.mark.parametrize(
    "arguments",
    [["health", "--ready"], ["status"], ["pause", "--wait", "0"], ["reload"], ["stop"]],
)
def test_a_secret_that_is_away_takes_no_command_away(
    desk: Desk, tmp_path: Path, arguments: list[str]
) -> None:
    """The file is as it was; what it refers to is missing, as while a volume is mounted anew."""
    usable, secret = desk.file.read_text(), tmp_path / "secret"
    document = json.loads(usable)
    document["admin"]["token"] = f"${{file:{secret}}}"
    desk.file.write_text(json.dumps(document))
    try:
        with pytest.raises(ConfigError, match=str(secret)):
            load(desk.file)
        result = desk.run(*arguments)
    finally:
        desk.file.write_text(usable)
    assert (result.exit_code, result.stderr) == (0, "")


def test_the_status_says_that_the_file_cannot_be_used(spoilt: Desk) -> None:
    """In one line on standard error, of what the process found; what it does stands as before."""
    spoilt.scene.deployment.problems = ("line 1: the list is not closed", "channels: is missing")
    result = spoilt.run("status")
    assert (result.exit_code, "events-0" in result.stdout) == (0, True)
    assert result.stderr == (
        f"{spoilt.file} as it is now cannot be used, and what was read before goes on: "
        "line 1: the list is not closed and 1 more\n"
    )
    assert spoilt.run("status", "--json").stderr == result.stderr


def test_the_group_is_shown_as_the_process_knows_it(spoilt: Desk) -> None:
    """Without the file there are no brokers to ask: members and owners, and exit code 1."""
    result = spoilt.run("group")
    assert result.exit_code == 1
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:5] == ["member", "group", "group", "·", "running"]
    assert ["events-0", "unknown", "member"] in [line[:3] for line in lines]
    assert "so that Kafka was not asked" in result.stderr
    (document,) = json.loads(spoilt.run("group", "--json").stdout)
    assert [each["lag"] for each in document["partitions"]] == [None, None]
    unknown = spoilt.run("group", "--channel", "another")
    assert (unknown.exit_code, unknown.stdout) == (2, "")


def test_a_bad_file_without_a_process_is_the_reason(scene: Scene, tmp_path: Path) -> None:
    """Exit code 2 with what is wrong in it, and where a process would have been found."""
    desk = Desk(scene, tmp_path)
    desk.file.write_text("channels: {}")
    for command in ("status", "health"):
        result = desk.run(command)
        assert (result.exit_code, "channels" in result.stderr) == (2, True)
        assert f"no process of {desk.file} left a record in" in result.stderr


def test_a_file_that_was_moved_still_leads_to_its_process(desk: Desk, tmp_path: Path) -> None:
    """The process is found by the file's instance_id and state_dir: no record has the new path."""
    moved = tmp_path / "moved.yaml"
    moved.write_text(desk.file.read_text())
    for command in ("status", "health"):
        assert run(command, "-c", str(moved)).exit_code == 0


def test_a_process_that_died_is_told_from_one_that_was_never_started(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3, of a health check 1."""
    state = tmp_path / "state"
    monkeypatch.setenv("STATE_DIRECTORY", str(state))
    own = ProcessRecord.of_this_process(desk.file, "member", "http://127.0.0.1:1", "-", None)
    replace(own, pid=999_999_999).leave(state, {"STATE_DIRECTORY": str(state)})
    for command, code in (("status", 3), ("pause", 3), ("health", 1)):
        result = desk.run(command)
        assert (result.exit_code, "999999999, does not run any more" in result.stderr) == (
            code,
            True,
        )


def test_of_two_processes_of_a_file_the_one_it_names_is_asked(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes share a file if the environment sets instance_id; a file without one is a 2."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    address = desk.folder.read_address()
    assert address is not None
    for name, url, pid in (("member", address.url, 1), ("other", "http://127.0.0.1:1", 2)):
        own = ProcessRecord.of_this_process(desk.file, name, url, "-", None)
        replace(own, pid=pid, namespace="pid:[1]").leave(tmp_path, {})
    assert desk.run("status").exit_code == 0
    assert desk.run("health").exit_code == 0
    usable = desk.file.read_text()
    desk.file.write_text("")
    result = desk.run("status")
    desk.file.write_text(usable)
    assert (result.exit_code, "member (process 1), other (process 2)" in result.stderr) == (2, True)


def test_an_address_needs_no_file_that_can_be_used(
    spoilt: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a record: what takes a token has the one that is named, else says where none was."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    address = spoilt.folder.read_address()
    assert address is not None
    token_file = str(spoilt.folder.token_file)
    named = spoilt.run("stop", "--url", address.url, "--token-file", token_file)
    assert (named.exit_code, named.stderr) == (0, "")
    assert spoilt.run("status", "--url", address.url).exit_code == 0
    nameless = spoilt.run("stop", "--url", address.url)
    assert nameless.exit_code == 1
    for words in (f"{spoilt.file} cannot be used", "--token-file FILE"):
        assert words in nameless.stderr


def test_of_several_processes_the_address_has_its_own_token_and_certificate(
    spoilt: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each left them in its record, so that nothing is read from the file."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    address, token = spoilt.folder.read_address(), spoilt.folder.read_token()
    assert address is not None
    assert token is not None
    certificate = tmp_path / "server.pem"
    for name, url, secret, shown, pid in (
        ("member", address.url, token, None, os.getpid()),
        ("other", "https://127.0.0.1:1", "another", certificate, 1),
    ):
        own = ProcessRecord.of_this_process(spoilt.file, name, url, secret, shown)
        replace(own, pid=pid, started="").leave(tmp_path, {"STATE_DIRECTORY": str(tmp_path)})
    result = spoilt.run("stop", "--url", f"{address.url}/")
    assert (result.exit_code, result.stderr) == (0, "")
    other = find(ClientOptions(spoilt.file, "https://127.0.0.1:1", environment={}))
    assert (other.token, other.own_certificate) == ("another", certificate)
    named = find(ClientOptions(spoilt.file, "https://127.0.0.1:1", environment={TOKEN: "named"}))
    assert (named.token, named.own_certificate) == ("named", certificate)


def test_a_process_that_does_not_run_is_a_code_of_its_own(scene: Scene, tmp_path: Path) -> None:
    """Never started, gone, or nothing at the address: exit code 3 with what to do."""
    desk = Desk(scene, tmp_path)
    never = desk.run("status")
    assert (never.exit_code, "headrace run -c" in never.output) == (3, True)
    desk.folder.path.mkdir(parents=True)
    desk.folder.address_file.write_text('{"url": "http://127.0.0.1:1", "pid": 999999999}')
    gone = desk.run("status")
    assert (gone.exit_code, "does not run any more" in gone.output) == (3, True)
    silent = run("status", "--url", "http://127.0.0.1:1")
    assert (silent.exit_code, "does not answer" in silent.output) == (3, True)


def test_a_process_without_an_api_is_named(scene: Scene, tmp_path: Path) -> None:
    """The message says that the configuration has switched the API off."""
    desk = Desk(scene, tmp_path, enabled=False)
    result = desk.run("status")
    assert (result.exit_code, "admin.enabled is false" in result.output) == (2, True)
