from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from structlog.testing import capture_logs
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.errors import StartError
from headrace.core.findings import Finding, Level, error, ok, warning
from headrace.extensions.spark.dryrun import SparkCheck
from headrace.ops.doctor import run as commands
from headrace.ops.doctor.files import check_code, check_sinks
from headrace.ops.doctor.run import PreflightContext, run_checks
from headrace.ops.doctor.show import document, exit_code, line, summary, table
from headrace.ops.doctor.spark import check_spark
from headrace.sinks.sections import JsonLinesSinkConfig
from tests.unit.ops.doctor.support import bad, config, only

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from headrace.config import Config

_FINDINGS = [
    ok("kafka", "two brokers"),
    warning("clock", "off by [3 s]", "synchronize it"),
    error("java", "none", "install one"),
]


def test_errors_alone_make_doctor_fail() -> None:
    """Warnings are for people."""
    assert [exit_code(_FINDINGS), exit_code(_FINDINGS[:2]), exit_code([])] == [1, 0, 0]


def test_findings_are_shown_in_three_ways() -> None:
    """Lines, a table and JSON say the same; brackets in a text are no markup."""
    assert line(_FINDINGS[1]) == "warning clock: off by [3 s] -> synchronize it"
    assert summary(_FINDINGS) == "1 error, 1 warning, 1 ok"
    assert summary(_FINDINGS[:1] * 2) == "0 errors, 0 warnings, 2 ok"
    console = Console(width=120, record=True, file=None)
    with console.capture() as shown:
        console.print(table(_FINDINGS))
    assert "off by [3 s]" in shown.get()
    written = document(_FINDINGS, ["kafka-acls.sh"])
    assert written["ok"] is False
    assert written["findings"][2] == {
        "check": "java",
        "level": "error",
        "seen": "none",
        "advice": "install one",
    }


def test_a_check_that_fails_keeps_no_other_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error of its own, logged with its traceback."""

    def broken(_: object) -> Iterator[Finding]:
        raise OSError("no such thing")

    def nothing(*_: object, **__: object) -> Iterator[Finding]:
        yield from ()

    for name in ("check_zookeeper", "check_kafka", "check_java", "check_spark", "check_code"):
        monkeypatch.setattr(commands, name, nothing)
    monkeypatch.setattr(commands, "check_open_files", broken)
    context = PreflightContext(config(tmp_path), tmp_path, (), {})
    with capture_logs() as logs:
        found = [f for f in run_checks(context) if f.level is Level.ERROR]
    assert [f.check for f in found if "OSError" in f.seen] == ["open files"]
    assert "doctor_check_failed" in [entry["event"] for entry in logs]


def test_spark_is_asked_only_where_a_channel_needs_it(tmp_path: Path) -> None:
    """A simple channel needs no Java; those with state and those that re-key do by default."""
    simple = {"processor": {"type": "simple"}, "sink": "functions:keep"}
    assert PreflightContext(config(tmp_path), tmp_path, (), {}).uses_spark
    assert not PreflightContext(config(tmp_path, simple), tmp_path, (), {}).uses_spark
    for processor in ({"type": "keyed", "reducer": "a:b"}, {"type": "rekey", "key": "value.id"}):
        for options, expected in (({}, True), ({"engine": "arrow"}, False)):
            channel = {
                "processor": {**processor, **options},
                "sink": {"type": "kafka", "topic": "results"},
            }
            context = PreflightContext(config(tmp_path, channel), tmp_path, (), {})
            assert context.uses_spark is expected


def test_disabled_channels_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disabled channels are named in a finding, and checked nowhere."""
    seen: list[tuple[str, ...]] = []

    def note(config: Config) -> Iterator[Finding]:
        seen.append(tuple(config.channels))
        yield from ()

    for name in ("check_zookeeper", "check_kafka", "check_code", "check_open_files"):
        monkeypatch.setattr(commands, name, note)
    context = PreflightContext(config(tmp_path, {"enabled": False}), tmp_path, (), {})
    found = list(run_checks(context))
    assert seen == [()] * 4
    assert "because they are disabled: flights" in found[0].seen
    assert exit_code(found) == 0
    assert not context.uses_spark
    assert not context.acls


def test_a_session_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    """The first line of the reason is told."""

    def refuse(_: Any) -> SparkCheck:
        raise StartError("Spark did not start\nlong story")

    found = only(check_spark(config(tmp_path).spark, refuse))
    assert found.seen == "StartError: Spark did not start"
    assert not bad(check_spark(config(tmp_path).spark, lambda _: SparkCheck("4.0.5", 2, 8.0)))


def test_code_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    """Also where it takes other arguments than it will get."""
    missing = {"processor": {"type": "spark", "reducer": "nowhere_at_all:reduce"}}
    assert "no module 'nowhere_at_all'" in only(check_code(config(tmp_path, missing))).seen
    wrong = {"processor": {"type": "simple"}, "sink": "shutil:which"}
    assert not bad(check_code(config(tmp_path, wrong)))
    wrong = {"processor": {"type": "simple"}, "sink": "shutil:copyfile"}
    assert "it is called with (batch)" in only(check_code(config(tmp_path, wrong))).seen


def test_a_decoder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """The factory is imported and not called; its options must fit its parameters."""
    processor = {
        "type": "arrow",
        "reducer": "json:dumps",
        "decode": "json:JSONDecoder",
        "schema": "a INT",
        "decoder_options": {"strict": False},
    }
    decoder = "decoder of channel flights"
    found = check_code(config(tmp_path, {"processor": processor}))
    assert [f.level for f in found if f.check == decoder] == [Level.OK]
    processor |= {"decoder_options": {"stricter": True}}
    found = check_code(config(tmp_path, {"processor": processor}))
    (finding,) = [f for f in found if f.check == decoder]
    assert finding.level is Level.ERROR
    assert "the options are stricter" in finding.seen


def test_a_sink_s_factory_is_tried_with_its_options(tmp_path: Path) -> None:
    """It is imported, and not called: its name and its options are looked at."""
    sink = {"type": "custom", "factory": "shutil:which", "options": {"cmd": "ls"}}
    channel = {"processor": {"type": "spark", "sql": "select 1"}, "sink": sink}
    assert not bad(check_sinks(config(tmp_path, channel)))
    channel["sink"] = sink | {"options": {"command": "ls"}}
    assert "the options are command" in only(check_sinks(config(tmp_path, channel))).seen


def test_a_file_that_cannot_be_used_ends_with_2(tmp_path: Path) -> None:
    """An invalid file ends the command before any check."""
    (tmp_path / "headrace.yaml").write_text("chanels: {}\n")
    done = CliRunner().invoke(app, ["doctor", "-c", str(tmp_path / "headrace.yaml")])
    assert done.exit_code == 2
    assert "chanels" in done.stderr


def test_the_command_prints_lines_or_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings, a summary and the commands for ACLs; the exit code tells of errors."""
    monkeypatch.setattr(commands, "run_checks", lambda _: iter(_FINDINGS))
    monkeypatch.setattr(commands, "configure_logging", lambda _: None)
    file = tmp_path / "headrace.yaml"
    file.write_text(
        "channels: {a: {topics: [t], group: g, processor: {type: spark, reducer: 'm:f'}, "
        "sink: noop}}\n"
    )
    lines = CliRunner().invoke(app, ["doctor", "-c", str(file)])
    assert lines.exit_code == 1
    assert lines.stdout.splitlines()[:4] == [*map(line, _FINDINGS), summary(_FINDINGS)]
    assert "kafka-acls.sh" in lines.stdout.splitlines()[-1]
    as_json = CliRunner().invoke(app, ["doctor", "-c", str(file), "--json"])
    assert json.loads(as_json.stdout)["acls"]


def test_a_sink_whose_check_fails_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is a finding of that channel."""

    def broken(_: object) -> None:
        raise ZeroDivisionError("no check")

    monkeypatch.setattr(JsonLinesSinkConfig, "check", broken)
    outputs = {"a": {"type": "jsonl", "path": str(tmp_path / "x")}, "b": {"type": "noop"}}
    processor = {"type": "arrow", "reducer": "a:b"}
    channel = {"processor": processor, "sink": {"type": "several", "outputs": outputs}}
    found = only(check_sinks(config(tmp_path, channel)))
    assert "the check of type jsonl failed: ZeroDivisionError: no check" in found.seen
