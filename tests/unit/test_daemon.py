"""The process's way from its start to an exit code, without anything behind it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from headrace import __main__, daemon
from headrace.channel.states import StopReport
from headrace.core.errors import FatalError
from headrace.daemon import ExitCode
from headrace.kafka.errors import KafkaUnavailableError
from headrace.signals import Signals
from tests.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def live() -> Callable[[str | None], ExitCode]:
    """Return a function that fails a start, with or without a signal, and gives the exit code."""
    signals = Signals()

    def run(heard: str | None) -> ExitCode:
        def start(*_: Any, **__: Any) -> None:
            signals.asked = heard
            raise KafkaUnavailableError("Kafka does not answer")

        controller = MagicMock()
        controller.start = start
        controller.config.shutdown_timeout = 1.0
        controller.stop.return_value = StopReport(())
        return daemon._live(controller, MagicMock(), MagicMock(), signals, MagicMock())

    return run


def test_a_start_that_fails_by_a_signal_was_stopped(
    live: Callable[[str | None], ExitCode],
) -> None:
    """A library that the signal interrupts may fail; the process was asked to stop, and did."""
    with capture_logs() as logs:
        assert live("SIGTERM") is ExitCode.STOPPED
    told = next(each for each in logs if each["event"] == "stopped_during_start")
    assert (told["signal"], told["failed"]) == ("SIGTERM", "Kafka does not answer")


def test_a_start_that_fails_without_a_signal_has_failed(
    live: Callable[[str | None], ExitCode],
) -> None:
    """Without a request to stop, the error decides on the exit code."""
    with pytest.raises(KafkaUnavailableError):
        live(None)


@pytest.mark.parametrize(
    ("failure", "seconds"), [(None, 20.0), (FatalError("hung"), daemon.FATAL_STOP_TIMEOUT)]
)
def test_a_stop_has_the_time_that_its_signal_gave_it(
    failure: FatalError | None, seconds: float
) -> None:
    """It does not begin anew when the main thread comes to it; what must end has less."""
    signals, controller = Signals(lambda _: None), MagicMock()
    signals.serve(lambda: 20.0)
    signals.ask("SIGTERM")
    controller.config.shutdown_timeout = 600.0
    controller.stop.return_value = StopReport(())
    daemon._stop(controller, MagicMock(), failure, signals, MagicMock())
    (deadline,) = controller.stop.call_args.args
    assert deadline.remaining <= seconds


@pytest.mark.parametrize("is_bounded", [False, True])
def test_a_start_is_looked_at_more_often(monkeypatch: pytest.MonkeyPatch, is_bounded: bool) -> None:
    """READY is told as soon as it is true; a bounded run asks the brokers at each turn instead."""
    reasons = [["claims are pending"], ["claims are pending"], []]
    monkeypatch.setattr(daemon, "not_ready", lambda *_: reasons.pop(0))
    controller, service, failure = MagicMock(), MagicMock(), FatalError("the end")
    controller.is_bounded = is_bounded
    controller.finished.return_value = False
    answers = iter([None, None, None, None, failure])
    controller.wait.side_effect = lambda _: next(answers)
    ended = daemon._wait(controller, MagicMock(), MagicMock(), Signals(lambda _: None), service)
    assert ended is failure
    service.ready.assert_called_once()
    first, second, third, *later = [call.args[0] for call in controller.wait.call_args_list]
    assert first == second == third
    assert all((first < turn) is not is_bounded for turn in later)


def test_the_collector_rests_until_all_is_imported(tmp_path: Path) -> None:
    """It looks at what comes afterwards, and no longer at what the imports have made."""
    file = tmp_path / "headrace.yaml"
    channel = "{group: g, topics: [t], processor: {type: simple}, sink: 'builtins:len'}"
    file.write_text(f"kafka: {{bootstrap_servers: b}}\nchannels: {{c: {channel}}}\n")
    seen = (
        "import gc, runpy, sys, headrace.signals as s\n"
        "s.Signals.listen = lambda self: print(gc.isenabled(), gc.get_freeze_count() > 10_000, "
        "'headrace.ops.admin.server' in sys.modules) or 'headrace.daemon' in sys.modules "
        "and exit(9)\n"
        f"sys.argv = ['headrace', 'run', '-c', {str(file)!r}]\n"
        "runpy.run_module('headrace', run_name='__main__')\n"
    )
    done = run_program([sys.executable, "-c", seen])
    assert done.returncode == 9, done.stderr
    assert done.stdout.splitlines() == ["False False False", "True True True"]


@pytest.mark.parametrize(
    ("arguments", "variable", "named"),
    [
        (["-c", "a.yaml"], "", "a.yaml"),
        (["-ca.yaml"], "b.yaml", "a.yaml"),
        (["--config", "a.yaml"], "", "a.yaml"),
        (["--config=b.yaml", "-c", "a.yaml"], "", "a.yaml"),
        ([], "a.yaml", "a.yaml"),
        ([], "", None),
        (["-c", ""], "", None),
        (["-c"], "", None),
        (["a.yaml"], "a.yaml", None),
        (["-c", "a.yaml", "--until", "latest"], "", None),
        (["--help"], "a.yaml", None),
    ],
)
def test_a_file_alone_needs_no_parser(
    arguments: list[str],
    variable: str,
    named: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Other arguments are left to the command line, with its options and messages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CONFIG", variable)
    assert __main__._only_configuration(arguments) == (None if named is None else Path(named))


def test_a_file_of_the_usual_name_need_not_be_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is taken where neither the command line nor the environment names another."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace.yaml").touch()
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)
    assert __main__._only_configuration([]) == Path("headrace.yaml")
    assert __main__._only_configuration(["-c", "a.yaml"]) == Path("a.yaml")
    assert __main__._only_configuration(["-c", ""]) is None
    assert __main__._only_configuration(["--until", "latest"]) is None
    monkeypatch.setenv("HEADRACE_CONFIG", "b.yaml")
    assert __main__._only_configuration([]) == Path("b.yaml")
