from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

import headrace
from headrace.channel.bounds import Until
from headrace.channel.pauses import PauseReason
from headrace.config import Section
from headrace.controller.reports import ReloadOutcome
from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError, FatalError, ImportPathError, StartError
from headrace.core.records import TopicPartition
from headrace.formats.errors import RegistryError
from headrace.kafka.errors import KafkaUnavailableError
from headrace.zookeeper.protocol import SessionState
from tests.metrics import value_of
from tests.unit.channel.in_memory import P0, eventually, values
from tests.unit.controller.world import CHANNEL, World, delivers, running_world

AGAIN = "main again"


def test_hot_values_take_nothing_away(world: World) -> None:
    """The channel goes on with its processor and claims, and the report has the fields."""
    delivers(world)
    world.channel(workers=5, batch={"max_records": 7, "linger": "0s"})
    report = world.reload()
    assert report.outcome is ReloadOutcome.APPLIED
    assert [c.path for c in report.applied] == [
        "channels.main.workers",
        "channels.main.batch.max_records",
    ]
    assert world.controller.channels["main"].config.workers == 5
    assert world.recorder().names(0).count("assigned") == 1
    assert len(world.recorders["main"]) == 1
    delivers(world)


def test_one_place_compares_configurations(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload finds the difference; all that act on it are told, and compare nothing."""
    callers = set()

    def compared(one: Section, other: object) -> bool:
        callers.add(sys._getframe(1).f_globals["__name__"])
        return BaseModel.__eq__(one, other)

    world.channel(workers=5, coordinator={**CHANNEL["coordinator"], "weight": 2}, sink=None)
    world.channel("more")
    monkeypatch.setattr(Section, "__eq__", compared)
    assert world.reload().outcome is ReloadOutcome.APPLIED
    world.write(zookeeper={"hosts": ["other:2181"]}, reload={"watch": True, "debounce": "1s"})
    world.channel(group="another")
    assert world.reload().outcome is ReloadOutcome.APPLIED
    assert callers <= {"headrace.config.diff"}
    package = Path(headrace.__file__).parent
    users = (
        file for file in package.rglob("*.py") if re.search(r"(?<!np\.)\bdiff\(", file.read_text())
    )
    assert {str(file.relative_to(package)) for file in users} == {
        "config/diff.py",
        "controller/reload.py",
    }


def test_the_same_file_changes_nothing(world: World) -> None:
    """A reload without a difference says so."""
    assert world.reload().outcome is ReloadOutcome.UNCHANGED
    assert world.reloader.config_status().pending == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("channels: {main: {topics: [events], wrkers: 5}}", "wrkers"),
        ("channels: [", "YAML"),
        ("kafka: {sasl: {password: hunter2}}", "mechanism"),
    ],
)
def test_a_bad_file_changes_nothing(world: World, text: str, problem: str) -> None:
    """All problems are told and logged, the metrics show it, and what ran goes on."""
    world.file.write_text(text, encoding="utf-8")
    with capture_logs() as logs:
        report = world.reload()
    assert report.outcome is ReloadOutcome.REJECTED
    assert any(problem in each for each in report.problems)
    (said,) = [entry for entry in logs if entry["event"] == "config_rejected"]
    assert said["problems"] == list(report.problems)
    assert "hunter2" not in str(report) + str(logs)
    metrics = world.controller.metrics
    assert value_of(metrics.config_last_reload_success) == 0
    assert world.reloader.config_status().problems == report.problems
    delivers(world)
    world.write()
    assert world.reload().outcome is ReloadOutcome.UNCHANGED
    assert world.reloader.config_status().problems == ()
    assert value_of(metrics.config_last_reload_success) == 1


def test_channels_come_and_go(world: World) -> None:
    """An added channel starts, and a removed one stops in order; the others do not notice."""
    world.channel("more")
    assert world.reload().outcome is ReloadOutcome.APPLIED
    delivers(world, "more")
    world.without("more")
    assert world.reload().outcome is ReloadOutcome.APPLIED
    assert list(world.controller.channels) == ["main"]
    assert world.recorder("more").names(0)[-1] == "terminated"
    assert world.recorder("main").names(0).count("assigned") == 1
    delivers(world)


def test_a_channel_is_switched_off_and_on(world: World) -> None:
    """``enabled`` stops it and starts it anew, with what was changed meanwhile."""
    delivers(world)
    world.channel(enabled=False)
    world.reload()
    assert not world.controller.channels
    world.channel(workers=3)
    assert world.reload().outcome is ReloadOutcome.APPLIED
    world.channel(enabled=True)
    assert world.reload().outcome is ReloadOutcome.APPLIED
    assert world.controller.channels["main"].config.workers == 3
    delivers(world)


def test_a_cold_change_restarts_only_its_channel(world: World) -> None:
    """It terminates in order and goes on where it had committed; the others do not notice."""
    world.channel("more")
    world.reload()
    delivers(world)
    world.channel(sink=None, processor={"type": "custom", "factory": "memory:other"}, workers=4)
    assert world.reload().outcome is ReloadOutcome.APPLIED
    first, second = world.recorders["main"]
    assert first.names(0)[-1] == "terminated"
    delivers(world)
    assert second.delivered(0)[0] == (3, 6, 1)
    assert len(world.recorders["more"]) == 1
    assert world.controller.channels["main"].config.workers == 4


def test_a_channel_that_was_taken_away_comes_back_without_its_pauses(world: World) -> None:
    """Pauses of a removed channel cannot be ended; ``pause: {persist: true}`` keeps them."""
    world.controller.channels["main"].pause(by="me")
    for enabled in (False, True):
        world.channel(enabled=enabled)
        assert world.reload().outcome is ReloadOutcome.APPLIED
    assert world.controller.channels["main"].pauses == ()
    delivers(world)


def test_an_operators_pause_outlives_a_restart_of_its_channel(world: World) -> None:
    """A change made during a pause is applied, and delivery rests until the pause ends."""
    world.controller.channels["main"].pause(by="me", note="wait")
    world.controller.channels["main"].pause(PauseReason.DOWNSTREAM, by="processor")
    world.channel(group=AGAIN)
    assert world.reload().outcome is ReloadOutcome.APPLIED
    channel = world.controller.channels["main"]
    assert [(pause.by, pause.note) for pause in channel.pauses] == [("me", "wait")]
    assert channel.wait_paused(Deadline.after(10))
    end = world.broker.produce(P0, *values(3))
    assert world.recorder().delivered(0) == []
    channel.resume(by="me")
    assert world.broker.wait_committed(AGAIN, P0, end, Deadline.after(10))


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("processor main", ImportPathError("'a:b': no module 'a'")),
        ("processor main", ConfigError(["the sink's path is a file"])),
    ],
)
def test_code_that_cannot_be_loaded_leaves_the_old_running(
    world: World, what: str, error: Exception
) -> None:
    """The channel is not even drained, and the change is pending with the reason."""
    delivers(world)
    world.channel(group=AGAIN)
    world.broken[what] = error
    report = world.reload()
    assert report.outcome is ReloadOutcome.PARTLY
    assert world.pending() == {"channels.main.group": str(error)}
    assert len(world.recorders["main"]) == 1
    assert "terminated" not in world.recorder().names(0)
    delivers(world)
    status = world.reloader.config_status()
    assert status.desired["channels"]["main"]["group"] == AGAIN
    assert status.applied["channels"]["main"]["group"] == "main"
    world.broken.clear()
    assert world.reload().outcome is ReloadOutcome.APPLIED
    delivers(world, AGAIN)


def test_a_channel_that_does_not_start_with_the_new_values_goes_on_with_the_old(
    world: World,
) -> None:
    """The former configuration is started again when the new one fails at its start."""
    delivers(world)
    world.channel(group=AGAIN)
    world.broken[f"channel main {AGAIN}"] = StartError("no luck")
    assert world.reload().outcome is ReloadOutcome.PARTLY
    assert world.pending() == {"channels.main.group": "no luck"}
    assert world.controller.channels["main"].config.group == "main"
    delivers(world)


def test_a_channel_whose_schema_registry_was_away_starts_later_by_itself(world: World) -> None:
    """A start that failed because of an outage is tried again, whatever the error is called."""
    delivers(world)
    world.channel(group=AGAIN)
    failed = StartError("there is no reader's schema now")
    failed.__cause__ = RegistryError("the registry is away")
    world.broken[f"channel main {AGAIN}"] = failed
    assert world.reload().outcome is ReloadOutcome.PARTLY
    world.broken.clear()
    eventually(lambda: not world.pending())
    delivers(world, AGAIN)


def test_a_channel_that_runs_neither_way_is_shown_and_holds_up_nothing(world: World) -> None:
    """It is none of those applied, the others go on, and it starts as soon as it can."""
    world.channel("more")
    world.reload()
    world.channel(group=AGAIN)
    world.channel("more", workers=7)
    world.broken[f"channel main {AGAIN}"] = KafkaUnavailableError("no broker")
    world.broken["channel main main"] = KafkaUnavailableError("no broker")
    assert world.reload().outcome is ReloadOutcome.PARTLY
    assert world.pending() == {"channels.main": "no broker"}
    assert list(world.reloader.config_status().applied["channels"]) == ["more"]
    assert world.controller.channels["more"].config.workers == 7
    world.broken.clear()
    eventually(lambda: not world.pending())
    delivers(world, AGAIN)


def test_a_change_during_an_outage_is_applied_when_it_is_over(world: World) -> None:
    """Hot values are applied without ZooKeeper, and the others when it is back."""
    world.session_state = SessionState.SUSPENDED
    world.channel("more", workers=3)
    world.reload()
    world.channel(group=AGAIN)
    world.without("more")
    report = world.reload()
    assert report.outcome is ReloadOutcome.PARTLY
    assert {p.change.path for p in report.pending} == {"channels.main.group", "channels.more"}
    assert all("ZooKeeper does not answer" in p.reason for p in report.pending)
    assert set(world.controller.channels) == {"main", "more"}
    world.session_state = SessionState.CONNECTED
    eventually(lambda: not world.pending())
    assert set(world.controller.channels) == {"main"}
    delivers(world, AGAIN)


def test_a_channel_is_not_drained_while_no_broker_answers(world: World) -> None:
    """The restart waits until its topics can be looked up."""
    world.broken["topics main"] = KafkaUnavailableError("no broker")
    world.channel(group=AGAIN)
    world.reload()
    assert world.pending() == {"channels.main.group": "no broker"}
    assert "terminated" not in world.recorder().names(0)
    world.broken.clear()
    eventually(lambda: not world.pending())
    delivers(world, AGAIN)


def test_an_added_topic_that_does_not_exist_yet_is_taken_up_when_it_does(world: World) -> None:
    """It is pending with its name; the channel goes on with those it has."""
    world.channel(topics=["events", "late"])
    world.reload()
    assert "no topic late" in world.pending()["channels.main.topics"]
    delivers(world)
    world.broker.create_topic("late")
    eventually(lambda: not world.pending())
    delivers(world, "main", TopicPartition("late", 0))


def test_a_change_that_needs_a_new_process_is_pending(world: World) -> None:
    """The report has it with the applied changes, and a reverted change is not pending."""
    world.channel(workers=3)
    world.write(metrics={"port": 1}, shutdown_timeout="7s")
    report = world.reload()
    assert report.outcome is ReloadOutcome.PARTLY
    assert {c.path for c in report.applied} == {"shutdown_timeout", "channels.main.workers"}
    assert world.pending() == {"metrics.port": "the process has to be restarted for it"}
    assert world.controller.config.shutdown_timeout == 7
    since = world.reloader.config_status().pending[0].since
    world.channel(workers=4)
    world.reload()
    assert world.reloader.config_status().pending[0].since == since
    assert value_of(world.controller.metrics.config_pending_changes) == 1
    world.write(metrics={})
    assert world.reload().outcome is ReloadOutcome.UNCHANGED


def test_requests_are_served_one_after_the_other(world: World) -> None:
    """Many at a time, by waiting and by asking, all get a report; the last file wins."""
    for count in range(2, 7):
        world.channel(workers=count)
        world.reloader.request("SIGHUP")
    reports = []
    threads = [threading.Thread(target=lambda: reports.append(world.reload())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(reports) == 4
    assert world.controller.channels["main"].config.workers == 6


def test_a_reload_that_outlasts_its_deadline_is_under_way(world: World) -> None:
    """The report says that the reload goes on."""
    world.channel(workers=3)
    report = world.reloader.reload("me", Deadline.after(0))
    assert report.outcome is ReloadOutcome.UNDER_WAY
    eventually(lambda: world.controller.channels["main"].config.workers == 3)


def test_properties_that_no_client_takes_change_nothing(world: World) -> None:
    """They would have had all channels drained and none connected again."""
    world.write(kafka={"properties": {"nobody.knows": 1}})
    report = world.reload()
    assert report.outcome is ReloadOutcome.REJECTED
    assert "kafka.properties.nobody.knows" in report.problems[0]
    assert len(world.recorders["main"]) == 1


def test_an_unexpected_error_ends_neither_thread_nor_channel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged with what it concerns, and shown as the reason."""
    world.broken["processor main"] = ZeroDivisionError("no")
    world.channel(group=AGAIN)
    with capture_logs() as logs:
        assert world.reload().outcome is ReloadOutcome.PARTLY
    assert "config_step_failed" in [entry["event"] for entry in logs]
    assert world.pending() == {"channels.main.group": "ZeroDivisionError: no"}
    monkeypatch.setattr("headrace.controller.reload.load", lambda *_, **__: 1 / 0)
    assert world.reload().outcome is ReloadOutcome.REJECTED
    delivers(world)


def test_an_error_after_which_nothing_can_be_trusted_ends_the_process(world: World) -> None:
    """The main thread hears of it as it does of a channel's."""
    error = FatalError("no state of its own")
    world.broken["processor main"] = error
    world.channel(group=AGAIN)
    assert world.reload().outcome is ReloadOutcome.PARTLY
    assert world.controller.wait(0) is error


def test_levels_of_logs_follow_the_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a changed level is set, so that one set by hand stays otherwise."""
    levels: list[str] = []
    monkeypatch.setattr("headrace.controller.reload.set_level", levels.append)
    world.write(logging={"level": "debug"})
    assert world.reload().outcome is ReloadOutcome.APPLIED
    world.write(shutdown_timeout="8s")
    world.reload()
    assert levels == ["debug"]


def test_a_secret_is_shown_nowhere(world: World) -> None:
    """The status has both configurations with secrets masked."""
    world.write(admin={"token": "hunter2" * 5})
    report = world.reload()
    assert "hunter2" not in repr(report) + repr(world.reloader.config_status())
    assert world.reloader.config_status().desired["admin"]["token"] == "***"


def test_the_file_is_watched_as_configured_now(world: World, tmp_path: Path) -> None:
    """Watching begins and ends by a reload; files that references name count as well."""
    (tmp_path / "limit").write_text("3", encoding="utf-8")
    world.channel(workers="${file:limit}")
    world.write(reload={"watch": True, "debounce": "50ms"})
    assert world.reload().outcome is ReloadOutcome.APPLIED
    (tmp_path / "limit").write_text("4", encoding="utf-8")
    eventually(lambda: world.controller.channels["main"].config.workers == 4)
    world.channel(workers=5)
    eventually(lambda: world.controller.channels["main"].config.workers == 5)
    eventually(lambda: world.reloader.config_status().last is not None)
    last = world.reloader.config_status().last
    assert last is not None
    assert last.by == "watch"
    world.write(reload={"watch": False})
    eventually(lambda: not world.controller.config.reload.watch)
    eventually(lambda: not any(t.name == "file-watcher" for t in threading.enumerate()))


def test_a_change_made_during_the_start_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read again when the watch begins; what is the same is not worth a word."""
    with (
        capture_logs() as logs,
        running_world(
            tmp_path, monkeypatch, lambda world: world.channel(workers=7), reload={"watch": True}
        ) as world,
    ):
        eventually(lambda: world.controller.channels["main"].config.workers == 7)
        assert world.reload().outcome is ReloadOutcome.UNCHANGED
    assert [e["by"] for e in logs if e["event"] == "config_reloaded"] == ["watch", "test"]


def test_a_stalled_watch_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, with the files and the calls that hang, and in the metrics; and so is its end."""
    # one of an earlier test may still be ending
    earlier = set(threading.enumerate())

    def watches() -> bool:
        new = set(threading.enumerate()) - earlier
        own = [each.ident for each in new if each.name == "file-watcher"]
        return any(ident in sys._current_frames() for ident in own)

    with running_world(tmp_path, monkeypatch, reload={"watch": True}) as world:
        metric = world.controller.metrics.config_watch_stalled

        eventually(watches)
        with capture_logs() as logs:
            monkeypatch.setattr("headrace.config.watch._STALL_TIMEOUT", -100.0)
            for _ in range(2):
                world.reloader.check_watch()
            assert value_of(metric) == 1
            monkeypatch.setattr("headrace.config.watch._STALL_TIMEOUT", 100.0)
            for _ in range(2):
                world.reloader.check_watch()
            assert value_of(metric) == 0
    told = [e for e in logs if e["event"].startswith("config_watch_")]
    assert [e["event"] for e in told] == ["config_watch_stalled", "config_watch_resumed"]
    assert told[0]["files"] == [str(world.file)]
    assert told[0]["calls"]


def test_a_stop_takes_no_further_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process stops in order while a reload waits for a broker; nothing is begun after that."""
    entered, go_on = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        entered.set()
        assert go_on.wait(10)

    monkeypatch.setattr("headrace.controller.reload.require_topics", wait)
    delivers(world)
    world.channel(group=AGAIN)
    world.channel("more")
    world.reloader.request("test")
    assert entered.wait(10)
    assert not world.reloader.stop(Deadline.after(0.05))
    assert world.controller.stop(Deadline.after(10)).clean
    go_on.set()
    assert world.reloader.stop(Deadline.after(10))
    assert set(world.pending().values()) == {"the process stops"}
    assert list(world.recorders) == ["main"]
    assert len(world.recorders["main"]) == 1


def test_a_bounded_run_refuses_to_change(tmp_path: Path) -> None:
    """It keeps the configuration that it began with, and says so."""
    world = World(tmp_path, until=Until())
    report = world.reload()
    assert report.outcome is ReloadOutcome.REJECTED
    assert "bounded run" in report.problems[0]
