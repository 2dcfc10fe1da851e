"""Changes that the API makes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.channel.pauses import PauseMode, PauseReason
from headrace.config import ChangeKind, ConfigChange, ReloadEffect
from headrace.controller.reports import ReloadOutcome, ReloadReport
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.kafka.errors import KafkaUnavailableError
from headrace.ops.admin.loglevels import MOST
from headrace.telemetry.logs import levels, set_level
from tests.unit.channel.in_memory import P0, P1

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel
    from tests.unit.ops.admin.scene import Scene

PAUSE, RESUME = "/api/v1/channels/member/pause", "/api/v1/channels/member/resume"


def _channel(scene: Scene) -> InboundKafkaChannel:
    return scene.controller.channels["member"]


def test_a_pause_is_acknowledged_when_it_is_true(scene: Scene) -> None:
    """With a wait the answer comes once nothing is being processed."""
    answer = scene.post(PAUSE, reason="the table is locked", by="ann", wait_s=10.0)
    assert answer.status_code == 200
    assert answer.json()["acknowledged"]
    (pause,) = _channel(scene).pauses
    assert (pause.reason, pause.by, pause.note) == (
        PauseReason.OPERATOR,
        "ann",
        "the table is locked",
    )
    assert {each.state for each in _channel(scene).partitions()} == {"paused"}


def test_a_pause_without_a_wait_answers_at_once(scene: Scene) -> None:
    """Without a wait the answer says nothing of the pause's effect."""
    assert scene.post(PAUSE).json()["acknowledged"] is None
    assert _channel(scene).pauses[0].by == "token from 127.0.0.1"


def test_a_pause_of_one_partition_drains_it_until_a_time(scene: Scene) -> None:
    """Mode, scope and end are those that were asked for."""
    until = datetime.now(UTC) + timedelta(hours=1)
    scene.post(PAUSE, mode="drain", topic="events", partition=1, until=until.isoformat())
    (pause,) = _channel(scene).pauses
    assert (pause.mode, pause.partition) == (PauseMode.DRAIN, TopicPartition("events", 1))
    assert pause.until == pytest.approx(until.timestamp())


def test_a_pause_meets_those_of_others_and_ends_none(scene: Scene) -> None:
    """Pauses add up: a user's own one is replaced, and another's ends by name alone."""
    first = scene.post(PAUSE, by="ann", for_s=7200).json()
    assert (first["replaced"], first["others"]) == (None, [])
    second = scene.post(PAUSE, by="bob", for_s=60).json()
    assert (second["replaced"], second["others"]) == (None, [first["pause"]])
    third = scene.post(PAUSE, by="bob", for_s=90).json()
    assert (third["replaced"], third["others"]) == (second["pause"], [first["pause"]])
    answer = scene.post(RESUME, by="bob").json()
    assert (answer["resumed"], answer["pauses"]) == (third["pause"], [first["pause"]])
    with capture_logs() as lines:
        refused = scene.post(RESUME, by="bob")
    assert (refused.status_code, refused.json()["error"]) == (409, "paused_by_others")
    (change,) = [line for line in lines if line["event"] == "admin_change"]
    assert change["error"].startswith("paused_by_others: ")
    assert "--of 'ann'" in refused.json()["next_step"]
    assert scene.post(RESUME, by="bob", of="ann").json()["resumed"] == first["pause"]
    assert _channel(scene).pauses == ()


def test_a_pause_shortens_ones_own_only_if_that_is_said(scene: Scene) -> None:
    """It is refused with what to do, and nothing is changed."""
    first = scene.post(PAUSE, by="ann", reason="repair").json()
    refused = scene.post(PAUSE, by="ann", for_s=60)
    assert (refused.status_code, refused.json()["error"]) == (409, "shorter_pause")
    assert "shorten" in refused.json()["next_step"]
    assert [pause.note for pause in _channel(scene).pauses] == ["repair"]
    answer = scene.post(PAUSE, by="ann", for_s=60, shorten=True).json()
    assert answer["replaced"] == first["pause"]
    assert answer["pause"]["until"] is not None


def test_a_resume_ends_one_pause_and_names_the_others(scene: Scene) -> None:
    """An operator's pause ends, a processor's goes on until it is asked for."""
    _channel(scene).pause(PauseReason.DOWNSTREAM, by="processor", note="full")
    scene.post(PAUSE, by="ann")
    answer = scene.post(RESUME, by="ann").json()
    assert answer["resumed"]["by"] == "ann"
    assert [pause["reason"] for pause in answer["pauses"]] == ["downstream"]
    assert scene.post(RESUME).json()["resumed"] is None
    assert scene.post(RESUME, pause_reason="downstream").json()["pauses"] == []


def test_resume_misfit_ends_the_rest_of_one_partition_or_of_all(scene: Scene) -> None:
    """Pauses of operators go on; ``of`` names one of those, and goes with no other reason."""
    channel = _channel(scene)
    for partition in (P0, P1):
        channel.pause(PauseReason.MISFIT, by="headrace", partition=partition, note="column 'id'")
    channel.pause(by="ann", partition=P1)
    answer = scene.post(RESUME, pause_reason="misfit", topic="events", partition=0).json()
    assert (answer["resumed"]["partition"], answer["resumed"]["note"]) == (0, "column 'id'")
    assert {(each["reason"], each["partition"]) for each in answer["pauses"]} == {
        ("misfit", 1),
        ("operator", 1),
    }
    assert scene.post(RESUME, pause_reason="misfit", of="ann").status_code == 422
    answer = scene.post(RESUME, pause_reason="misfit").json()
    assert [each["reason"] for each in answer["pauses"]] == ["operator"]
    assert scene.post(RESUME, pause_reason="misfit").json()["resumed"] is None


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"mode": "stop"}, "invalid_request"),
        ({"topic": "events"}, "invalid_request"),
        ({"until": "2099-01-01"}, "invalid_request"),
        ({"until": 4_000_000_000}, "invalid_request"),
        ({"until": "2001-01-01T00:00:00Z"}, "end_in_the_past"),
        ({"until": "2099-01-01T00:00:00Z", "for_s": 5}, "invalid_request"),
        ({"for_s": "5"}, "invalid_request"),
        ({"for_s": 0}, "invalid_request"),
        ({"wait_s": 1e9}, "invalid_request"),
        ({"reason": "two\nlines"}, "invalid_request"),
        ({"reson": "typed in a hurry"}, "invalid_request"),
        ({"topic": "events", "partition": 10**30}, "invalid_request"),
    ],
)
def test_an_invalid_body_is_refused_and_changes_nothing(
    scene: Scene, body: dict[str, Any], error: str
) -> None:
    """Wrong types, unknown keys, halves and ends in the past are a 422 with the place."""
    answer = scene.post(PAUSE, **body)
    assert (answer.status_code, answer.json()["error"]) == (422, error)
    assert _channel(scene).pauses == ()


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/api/v1/channels/other/pause", {}, "unknown_channel"),
        (PAUSE, {"topic": "evens", "partition": 0}, "unknown_topic"),
        (PAUSE, {"topic": "events", "partition": 2}, "unknown_partition"),
    ],
)
def test_an_unknown_resource_is_not_found(
    scene: Scene, path: str, body: dict[str, Any], error: str
) -> None:
    """An unknown channel, topic or partition is a 404 with its name."""
    answer = scene.post(path, **body)
    assert (answer.status_code, answer.json()["error"]) == (404, error)


@pytest.mark.parametrize("content", [b"{", b"[" * 60_000, b'{"reason": "\\ud800"}', b"1", b"\xff"])
def test_a_malformed_body_is_refused_in_the_same_shape(scene: Scene, content: bytes) -> None:
    """Broken, deeply nested or half characters: a 4xx and a problem, nothing else."""
    headers = {**scene.trusted, "Content-Type": "application/json"}
    answer = scene.client.post(PAUSE, headers=headers, content=content)
    assert answer.status_code in {400, 422}
    assert answer.json().keys() == {"error", "message", "value", "next_step"}


@pytest.mark.parametrize(
    ("action", "body", "error"),
    [
        ("seek", {"topic": "events", "partition": 0, "offset": 3}, "not_paused"),
        ("reset", {"to": "earliest"}, "not_paused"),
        (
            "skip",
            {"topic": "events", "partition": 0, "offset": 3, "reason": "-"},
            "committed_already",
        ),
    ],
)
def test_a_refusal_of_the_channel_is_a_conflict(
    scene: Scene, action: str, body: dict[str, Any], error: str
) -> None:
    """Moving a running partition or skipping a committed record is a 409 with a next step."""
    answer = scene.post(f"/api/v1/channels/member/{action}", **body)
    assert (answer.status_code, answer.json()["error"]) == (409, error)
    assert answer.json()["value"]
    assert answer.json()["next_step"]


def test_a_reset_moves_all_or_nothing_that_could_be_known(scene: Scene) -> None:
    """One partition that is not paused keeps all of them where they are."""
    _channel(scene).pause(by="test", partition=TopicPartition("events", 0))
    assert _channel(scene).wait_paused(Deadline.after(10))
    answer = scene.post("/api/v1/channels/member/reset", to="earliest")
    assert answer.json()["error"] == "not_paused"
    assert {each.position for each in _channel(scene).partitions()} == {10}
    one = {"to": "earliest", "topic": "events", "partition": 0, "replay": "append"}
    answer = scene.post("/api/v1/channels/member/reset", **one)
    assert answer.json()["moved"] == [
        {"topic": "events", "partition": 0, "before": 10, "offset": 0}
    ]


def test_a_reset_that_fails_midway_says_how_far_it_got(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the partitions that were moved before it."""
    channel = _channel(scene)
    channel.pause(by="test")
    assert channel.wait_paused(Deadline.after(10))
    seek = channel.seek

    def failing(partition: TopicPartition, offset: int, **options: Any) -> Any:
        if partition.partition == 1:
            raise KafkaUnavailableError("no leader")
        return seek(partition, offset, **options)

    monkeypatch.setattr(channel, "seek", failing)
    answer = scene.post("/api/v1/channels/member/reset", to="offset:4")
    assert (answer.status_code, answer.json()["error"]) == (409, "partly_done")
    assert answer.json()["message"] == "events-0 moved, then: no leader"


def test_each_change_leaves_a_line_in_the_log(scene: Scene) -> None:
    """The line has user, address, action and outcome, for done and for refused changes."""
    with capture_logs() as lines:
        scene.post(PAUSE, reason="look", by="ann")
        scene.post("/api/v1/channels/other/pause")
    done, refused = [line for line in lines if line["event"] == "admin_change"]
    assert (done["action"], done["channel"], done["by"]) == ("pause", "member", "ann")
    assert (done["requested"], done["proof"], done["outcome"]) == (
        {"reason": "look"},
        "token",
        "done",
    )
    assert done["address"].startswith("127.0.0.1")
    assert refused["outcome"] == "refused"
    assert refused["error"].startswith("unknown_channel")


def test_a_log_level_goes_back_by_itself(bare: Scene) -> None:
    """A level for a while is in effect at once and ends; asked for twice, it ends once."""
    set_level("warning")
    for seconds in (60.0, 0.05):
        answer = bare.post("/api/v1/loglevel", level="debug", for_s=seconds)
        assert answer.json()["levels"][""] == "debug"
        assert answer.json()["reverts_at"] is not None
    assert wait_for(lambda: levels()[""] == "warning", Deadline.after(10))


def test_a_log_level_of_one_logger_stays_until_it_is_taken_back(bare: Scene) -> None:
    """One logger's level leaves the others', and null ends it."""
    set_level("info")
    answer = bare.post("/api/v1/loglevel", level="debug", logger="headrace.channel").json()
    assert answer == {"levels": {"": "info", "headrace.channel": "debug"}, "reverts_at": None}
    answer = bare.post("/api/v1/loglevel", level=None, logger="headrace.channel").json()
    assert answer["levels"] == {"": "info"}
    assert bare.post("/api/v1/loglevel", level=None).status_code == 422


def test_the_answer_to_a_reload_has_its_changes(scene: Scene) -> None:
    """The changes, what is pending and the problems are in the answer; secrets are masked."""
    change = ConfigChange(
        ("kafka", "sasl", "password"), ChangeKind.CHANGED, "***", "***", ReloadEffect.CHANNEL
    )
    scene.deployment.report = ReloadReport("ann", 5.0, ReloadOutcome.APPLIED, applied=(change,))
    answer = scene.post("/api/v1/reload", by="ann", wait_s=5.0)
    assert answer.status_code == 200
    assert answer.json() == {
        "outcome": "applied",
        "at": "1970-01-01T00:00:05Z",
        "problems": [],
        "applied": [
            {
                "path": "kafka.sasl.password",
                "kind": "changed",
                "effect": "channel",
                "before": "***",
                "after": "***",
            }
        ],
        "pending": [],
    }
    assert scene.deployment.asked == ["ann"]


def test_a_stop_is_asked_for_once(bare: Scene) -> None:
    """The process hears of the first request, with who wants it; a second one changes nothing."""
    for _ in range(2):
        answer = bare.post("/api/v1/stop", by="ann", reason="moving house")
        assert answer.status_code == 202
    assert bare.stops == ["ann"]


def test_waiting_requests_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause beyond the limit of waiting requests begins, and is not acknowledged."""
    monkeypatch.setattr("headrace.ops.admin.changes.MOST_WAITING", 0)
    never = Event()
    monkeypatch.setattr(type(_channel(scene)), "wait_paused", lambda *_: never.wait(10))
    changed = type(scene)(scene.controller.broker)
    changed.controller.channels.update(scene.controller.channels)
    assert changed.post(PAUSE, wait_s=5.0).json()["acknowledged"] is False
    assert len(_channel(scene).pauses) == 1


def test_a_log_level_set_meanwhile_outlives_the_loan(bare: Scene) -> None:
    """A level that a reload sets stays when the temporary one ends."""
    set_level("warning")
    bare.post("/api/v1/loglevel", level="debug", for_s=0.05)
    set_level("error")
    with capture_logs() as lines:
        bare.post("/api/v1/loglevel", level="info", logger="headrace.test", for_s=0.2)
        assert wait_for(
            lambda: any(line["event"] == "log_level_reverted" for line in lines),
            Deadline.after(10),
        )
    assert levels() == {"": "error"}


def test_the_root_logger_is_named_by_leaving_it_out(bare: Scene) -> None:
    """It is the process's level, which a second name for it would take away."""
    assert bare.post("/api/v1/loglevel", level="debug", logger="root").status_code == 422


def test_not_every_name_gets_a_level_of_its_own(bare: Scene) -> None:
    """Names are bounded, and one that has no level costs none."""
    for number in range(2 * MOST):
        assert bare.post("/api/v1/loglevel", level=None, logger=f"a.{number}").status_code == 200
    answers = [bare.post("/api/v1/loglevel", level="info", logger=f"a.{n}") for n in range(MOST)]
    assert {answer.status_code for answer in answers} == {200}
    refused = bare.post("/api/v1/loglevel", level="info", logger="one.more")
    assert (refused.status_code, refused.json()["error"]) == (409, "too_many_loggers")
