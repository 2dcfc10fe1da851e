"""Readings of the API."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from headrace.config import ChangeKind, ConfigChange, ReloadEffect
from headrace.config.reference import meanings
from headrace.controller.engine_session import SparkSnapshot
from headrace.controller.reports import PendingChange
from headrace.coordinators.member_info import MemberState
from headrace.core.records import TopicPartition
from headrace.ops.admin.document import Described
from headrace.ops.admin.ports import ProcessPhase
from headrace.ops.admin.tables import show
from headrace.processors import BatchResponse
from headrace.testing import running
from tests.unit.channel.in_memory import P0, P1, eventually
from tests.unit.channel.recorder import Recorder

if TYPE_CHECKING:
    from pydantic import BaseModel

    from headrace.core.records import Batch
    from tests.unit.ops.admin.scene import Scene


def test_the_status_has_where_every_partition_stands(scene: Scene) -> None:
    """Process, ZooKeeper, channel, member and partitions are listed, with positions and lag."""
    status = scene.get("/api/v1/status").json()
    assert status["process"]["instance_id"] == "member"
    assert status["process"]["phase"] == "running"
    assert status["zookeeper"]["state"] == "connected"
    assert status["spark"] is None
    assert (status["ready"], status["not_ready_because"]) == (True, [])
    (channel,) = status["channels"]
    assert (channel["name"], channel["state"], channel["group"]) == ("member", "running", "group")
    assert channel["topics"] == {"events": 2}
    assert (channel["delivery"], channel["paused"]) == ("at-least-once", False)
    assert channel["member"]["state"] == "active"
    assert channel["member"]["assignment"] == "complete"
    assert channel["member"]["claims"] == 2
    assert channel["member"]["lease_s"] > 0
    assert channel["totals"]["records"] == 20
    first, second = channel["partitions"]
    assert (first["topic"], first["partition"], second["partition"]) == ("events", 0, 1)
    assert (first["position"], first["committed"], first["attempts"]) == (10, 10, 0)
    assert (first["epoch"], first["last_error"], first["held_back_until"]) == (1, None, None)


def test_lag_and_end_follow_the_log(scene: Scene) -> None:
    """Records produced during a pause show as the end of the log and as lag."""
    channel = scene.controller.channels["member"]
    channel.pause(by="test")
    scene.controller.broker.produce(TopicPartition("events", 0), b"more", b"and more")

    def seen() -> bool:
        first = scene.get("/api/v1/channels/member/partitions").json()["partitions"][0]
        return (first["end"], first["lag"]) == (12, 2)

    eventually(seen)
    assert scene.get("/api/v1/channels/member").json()["totals"]["lag"] == 2


def test_pauses_stand_with_their_reason_and_who(scene: Scene) -> None:
    """A channel's and a partition's pause are told apart, each with who, why and until when."""
    channel = scene.controller.channels["member"]
    channel.pause(by="ann", note="the table is locked", until=4_000_000_000.0)
    channel.pause(by="bob", partition=TopicPartition("events", 1))
    found = scene.get("/api/v1/channels/member").json()
    assert found["paused"]
    whole, single = found["pauses"]
    assert (whole["reason"], whole["mode"], whole["by"]) == ("operator", "hold", "ann")
    assert (whole["note"], whole["topic"]) == ("the table is locked", None)
    assert whole["until"] == "2096-10-02T07:06:40Z"
    assert (single["by"], single["topic"], single["partition"]) == ("bob", "events", 1)


def test_an_unknown_channel_is_a_404_with_a_near_name(scene: Scene) -> None:
    """The answer suggests the name that was probably meant."""
    answer = scene.get("/api/v1/channels/membre")
    assert answer.status_code == 404
    problem = answer.json()
    assert (problem["error"], problem["value"]) == ("unknown_channel", "membre")
    assert "did you mean member?" in problem["next_step"]


def test_members_are_read_from_zookeeper(scene: Scene) -> None:
    """The answer has the members of the group and the owners of its partitions."""
    (group,) = scene.get("/api/v1/members").json()["groups"]
    assert group["owners"] == {"events-0": "member", "events-1": "member"}
    (member,) = group["members"]
    assert (member["name"], member["this"], member["owned"]) == ("member", True, 2)
    assert (member["mode"], member["draining"], member["problem"]) == ("dynamic", False, None)


def test_a_silent_zookeeper_is_a_503(scene: Scene) -> None:
    """A ZooKeeper that does not answer is an error with that reason, without a traceback."""
    scene.controller.session.suspend()
    answer = scene.get("/api/v1/members")
    assert answer.status_code == 503
    assert answer.json()["error"] == "unavailable"
    scene.controller.session.resume()


def test_the_configuration_is_shown_without_secrets(scene: Scene) -> None:
    """Defaults are filled in, and what is secret is masked."""
    answer = scene.get("/api/v1/config")
    assert answer.json()["applied"]["channels"]["member"]["workers"] == 2
    assert "hush" not in answer.text
    assert "***" in answer.text


def test_pending_and_rejected_configuration_is_shown_with_its_reason(scene: Scene) -> None:
    """The status has pending settings and a rejected file; the configuration has both versions."""
    change = ConfigChange(
        ("shutdown_timeout",), ChangeKind.CHANGED, "30s", "1m", ReloadEffect.IN_PLACE
    )
    scene.deployment.pending = (PendingChange(change, "the channel is paused", 60.0),)
    scene.deployment.problems = ("channels (line 3): is missing",)
    summary = scene.get("/api/v1/status").json()["config"]
    assert summary["pending"] == [
        {
            "path": "shutdown_timeout",
            "effect": "in place",
            "reason": "the channel is paused",
            "since": "1970-01-01T00:01:00Z",
        }
    ]
    assert summary["problems"] == ["channels (line 3): is missing"]
    assert (summary["last_at"], summary["last_outcome"]) == (None, None)
    found = scene.get("/api/v1/config").json()
    assert found["desired"] == {"workers": 3}
    assert found["summary"] == summary


def test_stacks_name_the_threads(scene: Scene) -> None:
    """Each thread is listed with its calls."""
    threads = scene.get("/api/v1/stacks").json()["threads"]
    assert "MainThread" in threads
    assert any(name.startswith("member-worker") for name in threads)


def test_stacks_say_what_each_partition_is_doing(bare: Scene) -> None:
    """Partitions have the fields of the status, also with an error that is not UTF-8."""

    def refuse(_: Batch) -> BatchResponse:
        raise ValueError("bad \ud83d")

    stuck = {"backoff": "1h", "max_backoff": "1h"}
    with running(bare.controller.add(Recorder(refuse), retry=stuck)) as channel:
        eventually(lambda: [each.attempts for each in channel.partitions()] == [1, 1])
        partitions = bare.get("/api/v1/stacks").json()["partitions"]
        (of_status, _) = bare.get("/api/v1/channels/member/partitions").json()["partitions"]
    assert {(each["topic"], each["partition"]) for each in partitions} == {P0, P1}
    assert all(set(each) == {*of_status, "channel", "calls"} for each in partitions)
    assert {each["last_error"] for each in partitions} == {"ReducerError: ValueError: bad ?"}


def test_a_wait_beyond_the_last_year_leaves_the_status_readable(bare: Scene) -> None:
    """A record's time may be any number, and a delay has delivery wait for it."""
    recorder = Recorder(lambda _: BatchResponse.advance(wait=2**63 / 1000))
    with running(bare.controller.add(recorder)) as channel:
        eventually(lambda: sum(bool(p.held_back_seconds) for p in channel.partitions()) == 2)
        (status,) = bare.get("/api/v1/status").json()["channels"]
    shown = [each["held_back_until"] for each in status["partitions"]]
    assert shown == ["9999-12-31T23:59:59Z"] * 2


def test_half_a_character_in_an_error_leaves_the_status_readable(scene: Scene) -> None:
    """A processor's error may be a text that UTF-8 cannot encode."""
    scene.controller.channels["member"].fail(ValueError("bad \ud83d"))
    (channel,) = scene.get("/api/v1/status").json()["channels"]
    assert channel["failure"] == "bad ?"


def test_metrics_are_served_in_the_text_format(scene: Scene) -> None:
    """Prometheus reads the same metrics here as on a port of their own."""
    answer = scene.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'headrace_position{channel="member",partition="0",topic="events"} 10.0' in answer.text


def test_a_process_that_starts_is_live_but_not_ready(bare: Scene) -> None:
    """During the start the process is alive; not ready, and says why."""
    bare.process.become(ProcessPhase.STARTING)
    assert bare.client.get("/health/live").json() == {"ok": True, "reasons": []}
    answer = bare.client.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json() == {"ok": False, "reasons": ["the process is starting"]}


def test_a_member_without_its_partitions_is_not_ready(bare: Scene) -> None:
    """While the group settles, a channel that is in it has taken nothing, and says so."""
    slow = {"type": "dynamic", "rebalance_delay": "1h", "resync_interval": "100ms"}
    channel = bare.controller.add(coordinator=slow)
    with running(channel):
        eventually(lambda: channel.member.state is MemberState.ACTIVE)
        assert bare.client.get("/health/ready").json()["reasons"] == [
            "channel member has yet to take its partitions: 0 claimed so far"
        ]


def test_a_partition_that_a_transaction_holds_back_is_not_ready(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the partition and whose transaction it is."""
    channel = scene.controller.channels["member"]
    monkeypatch.setattr(channel, "held_back", lambda: {P0: "the producer tx.1"})
    assert scene.client.get("/health/ready").json()["reasons"] == [
        f"channel member {P0} is held back by a transaction: the producer tx.1"
    ]


def test_a_partition_whose_leader_does_not_answer_is_not_ready(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the first partition, counts the others and says where to look."""
    channel = scene.controller.channels["member"]
    monkeypatch.setattr(channel, "unanswered", lambda: (P0, P1))
    assert scene.client.get("/health/ready").json()["reasons"] == [
        (
            f"channel member: the leader of {P0} and 1 more partitions does not answer: brokers "
            "are away or let no client in, see kafka_client_error in the log"
        )
    ]


def test_a_named_topic_that_was_deleted_is_not_ready(
    bare: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the topic until it is there again; the channel runs on meanwhile."""
    monkeypatch.setattr("headrace.channel.topics.REFRESH_INTERVAL", 0.05)
    channel, broker = bare.controller.add(), bare.controller.broker
    with running(channel):
        eventually(lambda: bare.client.get("/health/ready").status_code == 200)
        broker.delete_topic("events")
        eventually(lambda: channel.deleted_topics() == ["events"])
        assert bare.client.get("/health/ready").json()["reasons"] == [
            (
                "channel member: topic events was deleted: create it again, or take it out of the "
                "configuration"
            )
        ]
        broker.create_topic("events", 2)
        eventually(lambda: bare.client.get("/health/ready").status_code == 200)


def test_readiness_names_everything_that_is_not_as_it_should_be(scene: Scene) -> None:
    """ZooKeeper, Spark and a failed channel are each a reason."""
    assert scene.client.get("/health/ready").status_code == 200
    scene.controller.snapshot = SparkSnapshot(running=False, pid=None, generation=1, cores=2)
    scene.controller.session.suspend()
    scene.controller.channels["member"].fail(ValueError("enough"))
    reasons = scene.client.get("/health/ready").json()["reasons"]
    assert reasons == [
        "the ZooKeeper session is suspended",
        "Spark does not run",
        "channel member is failed: enough",
    ]
    scene.controller.session.resume()


@pytest.mark.parametrize(
    ("generation", "reason", "word"),
    [(0, "Spark is starting", "starting"), (1, "Spark does not run", "failed")],
)
def test_a_spark_that_starts_is_told_from_one_that_died(
    scene: Scene, generation: int, reason: str, word: str
) -> None:
    """Before the first session there is nothing that could have failed."""
    scene.controller.snapshot = SparkSnapshot(
        running=False, pid=None, generation=generation, cores=2
    )
    assert scene.client.get("/health/ready").json()["reasons"] == [reason]
    shown = StringIO()
    show(scene.client.get("/api/v1/status").json(), [], Console(file=shown, width=200))
    assert f"Spark {word}" in shown.getvalue()


def test_a_main_thread_that_hangs_is_not_live(bare: Scene) -> None:
    """A running process whose main thread has not turned for half a minute is not live."""
    bare.process.last_beat -= 40
    answer = bare.client.get("/health/live")
    assert answer.status_code == 503
    assert "main thread" in answer.json()["reasons"][0]


def test_a_paused_process_is_ready(scene: Scene) -> None:
    """An operator's pause is no reason to take a process out of service."""
    scene.controller.channels["member"].pause(by="test")
    assert scene.client.get("/health/ready").status_code == 200


def test_rates_and_history_come_from_samples(scene: Scene) -> None:
    """Two samples give a point with the rate between them, and a rate of channel and partition."""
    scene.rates.sample()
    scene.controller.broker.produce(TopicPartition("events", 0), *[b"x"] * 5)
    channel = scene.controller.channels["member"]
    eventually(lambda: {each.position for each in channel.partitions()} == {15, 10})
    scene.rates.sample()
    (point,) = scene.get("/api/v1/history").json()["channels"]["member"]
    assert point["records_per_s"] > 0
    assert point["lag_s"] == 0
    status = scene.get("/api/v1/channels/member").json()
    assert status["totals"]["records_per_s"] > 0
    assert status["partitions"][0]["records_per_s"] > 0
    assert status["partitions"][1]["records_per_s"] == 0


def test_the_history_has_how_late_partitions_are_that_are_not_paused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history has the longest lag of partitions that are not paused."""
    channel = scene.controller.channels["member"]
    first, second = channel.partitions()
    late = [replace(first, lag_seconds=90.0, state="paused"), replace(second, lag_seconds=60.5)]
    monkeypatch.setattr(type(channel), "partitions", lambda _: late)
    scene.rates.sample()
    scene.rates.sample()
    assert scene.get("/api/v1/history").json()["channels"]["member"][-1]["lag_s"] == 60.5


def test_the_document_says_what_each_field_means(bare: Scene) -> None:
    """Each field of each model has the description from the source below it."""
    schemas = bare.client.get("/openapi.json").json()["components"]["schemas"]
    ours = {each.__name__: each for each in _all_below(Described) if each.__name__ in schemas}
    assert {"Status", "PauseRequest", "ProcessStatus"} <= ours.keys()
    for name, model in ours.items():
        said = meanings(model)
        assert said.keys() == set(model.model_fields), name
        assert {p: s["description"] for p, s in schemas[name]["properties"].items()} == said, name


def _all_below(model: type[BaseModel]) -> set[type[BaseModel]]:
    children = set(model.__subclasses__())
    return children.union(*map(_all_below, children))


def test_no_read_is_a_500_without_channels(bare: Scene) -> None:
    """Every read answers during the start."""
    document = bare.client.get("/openapi.json").json()["paths"]
    paths = [path for path, methods in document.items() if "get" in methods and "{" not in path]
    assert len(paths) >= 8
    assert {path: bare.get(path).status_code for path in paths} == dict.fromkeys(paths, 200)


def test_metrics_and_the_api_say_the_same_of_a_partition(scene: Scene) -> None:
    """Both render what the channel says of it at one moment."""
    registry = scene.controller.metrics.registry
    found = scene.get("/api/v1/channels/member/partitions").json()["partitions"]
    assert len(found) == 2
    names = {"position": "position", "committed_offset": "committed", "high_watermark": "end"}
    names |= {"lag_records": "lag", "lag_seconds": "lag_s", "owner_epoch": "epoch"}
    for each in found:
        of = {"channel": "member", "topic": each["topic"], "partition": str(each["partition"])}
        said = {
            key: registry.get_sample_value(f"headrace_{name}", of) for name, key in names.items()
        }
        assert said == {key: each[key] for key in said}


def test_no_position_is_past_the_end(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end is told now and then; a position that got past it since shows that there is more."""
    channel = scene.controller.channels["member"]
    late = [replace(each, high_watermark=each.position - 3) for each in channel.partitions()]
    monkeypatch.setattr(type(channel), "partitions", lambda _: late)
    found = scene.get("/api/v1/channels/member/partitions").json()["partitions"]
    assert [(each["position"], each["end"]) for each in found] == [(10, 10)] * 2


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/metrics", 200), ("/health/live", 200), ("/api/v1/status", 200), ("/no", 404)],
)
def test_a_head_request_has_the_status_and_headers_of_a_get(
    scene: Scene, path: str, status: int
) -> None:
    """The answer to HEAD has no body."""
    head, get = (scene.client.request(method, path) for method in ("HEAD", "GET"))
    assert (head.status_code, get.status_code) == (status, status)
    assert head.headers["content-type"] == get.headers["content-type"]
    assert (head.content, bool(get.content)) == (b"", True)
