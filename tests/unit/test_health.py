"""Questions of a probe, before other modules of Headrace are imported."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from headrace import health
from headrace.core.processes import ProcessRecord
from tests.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What is left of Headrace for a probe.
LIGHT = {
    "headrace",
    "headrace.__main__",
    "headrace.core",
    "headrace.core.errors",
    "headrace.health",
    "headrace.core.processes",
    "headrace.core.usual_file",
    "headrace.version",
}


class Probed:
    """A process that answers what a test says, and its configuration file."""

    def __init__(self, directory: Path) -> None:
        self.answer = (200, b"{}")
        self.asked: list[str] = []
        self.file = directory / "headrace.yaml"
        self.state = directory / "state"
        probed = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                """Answer."""
                probed.asked.append(self.path)
                status, body = probed.answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()

    def serve(self) -> None:
        """Leave a record, as the API does."""
        url = f"http://127.0.0.1:{self.server.server_port}"
        record = ProcessRecord.of_this_process(self.file, "one", url, "token", None)
        record.leave(self.state, {"STATE_DIRECTORY": str(self.state)})

    def close(self) -> None:
        """Answer no more."""
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probed]:
    """A process with a record."""
    probed = Probed(tmp_path)
    monkeypatch.setenv("STATE_DIRECTORY", str(probed.state))
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)
    probed.serve()
    yield probed
    probed.close()


#: Runs a command and prints its exit code, then what it imported.
_RUN = """
import sys
before = set(sys.modules)
from headrace.__main__ import main
try:
    main()
except SystemExit as ending:
    print(ending.code, *sorted(set(sys.modules) - before))
"""


def test_a_probe_imports_the_standard_library_only(probed: Probed) -> None:
    """It costs as little as it can, because supervisors pay for it every few seconds."""
    done = run_program([sys.executable, "-c", _RUN, "health", "-c", str(probed.file)], check=True)
    said, _, last = done.stdout.partition("\n")
    code, *imported = last.split()
    assert (said, code) == ("live", "0")
    ours = {name for name in imported if name.partition(".")[0] == "headrace"}
    assert ours == LIGHT
    assert {name.partition(".")[0] for name in {*imported} - ours} <= sys.stdlib_module_names


def test_a_file_that_cannot_be_used_is_no_reason_to_end_a_process(probed: Probed) -> None:
    """The process goes on with what it read before, so the file is not even looked at."""
    for content in ("channels: {evnts: [", "channels: {a: {topics: [a]}}", "\0"):
        probed.file.write_text(content)
        assert health.main(["-c", str(probed.file)]) == 0
    probed.file.unlink()
    assert health.main(["--ready", f"--config={probed.file}"]) == 0
    assert probed.asked == ["/health/live"] * 3 + ["/health/ready"]


def test_a_file_of_the_usual_name_need_not_be_named(
    probed: Probed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usual name is found, as for all commands that take a configuration."""
    probed.file.touch()
    monkeypatch.chdir(probed.file.parent)
    assert health.main([]) == 0
    assert capsys.readouterr().out == "live\n"


def test_the_variable_names_the_file_too(
    probed: Probed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable counts, as for all commands that take a configuration."""
    monkeypatch.setenv("HEADRACE_CONFIG", str(probed.file))
    assert health.main(["--ready", "--timeout", "2"]) == 0
    assert capsys.readouterr().out == "ready\n"


def test_the_reasons_of_a_process_are_printed(
    probed: Probed, capsys: pytest.CaptureFixture[str]
) -> None:
    """One a line; of what is no answer of ours, the status."""
    probed.answer = (503, b'{"reasons": ["the process is starting", "Spark does not run"]}')
    assert health.main(["-c", str(probed.file)]) == 1
    assert capsys.readouterr().err == "the process is starting\nSpark does not run\n"
    for body in (b"<html>", b"[]", b'{"reasons": 1}'):
        probed.answer = (502, body)
        assert health.main(["-c", str(probed.file)]) == 1
        assert "/health/live answered 502 Bad Gateway" in capsys.readouterr().err


def test_a_process_that_does_not_answer_is_not_well(
    probed: Probed, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process's record alone is no sign of life."""
    probed.close()
    assert health.main(["-c", str(probed.file)]) == 1
    assert "Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        [],
        ["-c", "{file}", "more"],
        ["-c", "{file}", "--timeout", "soon"],
        ["-c", "{file}", "--timeout", "0"],
        ["-c", "{file}", "--timeout", "nan"],
        ["-c", "absent.yaml"],
    ],
)
def test_other_calls_are_left_to_the_whole_command_line(
    probed: Probed, arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Help, mistakes, and a process without a record ask and print nothing."""
    given = [each.replace("{file}", str(probed.file)) for each in arguments]
    assert health.main(given) is None
    assert (probed.asked, capfd.readouterr()) == ([], ("", ""))
