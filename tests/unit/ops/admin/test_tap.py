"""Taps through the API and the command."""

from __future__ import annotations

import json
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from headrace.channel.taps import MOST_TAPS, Tap, TapFilter, TappedRecord
from headrace.cli import app
from headrace.config import AdminConfig
from headrace.core.errors import UsageError
from headrace.core.records import TopicPartition
from headrace.ops.admin.commands import tap as tap_command
from headrace.ops.admin.ports import ProcessPhase
from headrace.ops.admin.redaction import Redaction
from headrace.testing import FakeRecord, running
from tests.unit.channel.in_memory import P0, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping, Sequence

    import httpx

    from tests.unit.ops.admin.scene import Scene

    Logs = Sequence[MutableMapping[str, Any]]

TAP = "/api/v1/channels/member/tap"


class Asking:
    """A tap that is read on a thread, whose answer is whole when it has ended."""

    def __init__(self, scene: Scene, logs: Logs, query: str) -> None:
        self._answers: list[httpx.Response] = []
        before = opened(logs)
        self._thread = Thread(target=lambda: self._answers.append(scene.get(f"{TAP}?{query}")))
        self._thread.start()
        eventually(lambda: opened(logs) > before or bool(self._answers))

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines."""
        self._thread.join(30)
        (answer,) = self._answers
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture
def logs() -> Iterator[Logs]:
    """Capture the log, which has each tap that is opened and closed."""
    with capture_logs() as lines:
        yield lines


def opened(logs: Logs) -> int:
    """Return how many taps were opened."""
    return sum(line["event"] == "tap_opened" for line in logs)


def closed(logs: Logs) -> int:
    """Return how many taps were closed."""
    return sum(line["event"] == "tap_closed" for line in logs)


def test_records_are_sent_as_they_pass(scene: Scene, logs: Logs) -> None:
    """With all they have; what was there before the tap is not; counts come before and after."""
    asking = Asking(scene, logs, "limit=2&for_s=20&rate=100")
    record = FakeRecord(key_=b"k", value_=b'{"a": 1}', headers_=[("h", b"x"), ("n", None)])
    scene.controller.broker.produce(P0, record, FakeRecord(key_=b"\xff", value_=None))
    first, one, two, last = asking.lines()
    assert first["kind"] == "counts"
    assert (one["topic"], one["partition"], one["offset"]) == ("events", 0, 10)
    assert (one["key"], one["value"], one["value_bytes"]) == ("k", '{"a": 1}', 8)
    assert (one["headers"], one["attempt"]) == ([["h", "x"], ["n", None]], 1)
    assert (two["key"], two["key_hex"], two["value"]) == (None, "ff", None)
    assert (last["kind"], last["reason"], last["passed"], last["shown"]) == ("end", "limit", 2, 2)
    assert (opened(logs), closed(logs)) == (1, 1)


def test_a_partition_and_a_key_are_chosen(scene: Scene, logs: Logs) -> None:
    """Others pass, and are not sent."""
    asking = Asking(scene, logs, "partition=events:0&key=6b&hex=true&limit=1&for_s=20")
    broker = scene.controller.broker
    broker.produce(TopicPartition("events", 1), FakeRecord(key_=b"k", value_=b"other partition"))
    broker.produce(
        P0, FakeRecord(key_=b"x", value_=b"other key"), FakeRecord(key_=b"k", value_=b"v")
    )
    _, found, _ = asking.lines()
    assert (found["partition"], found["value"]) == (0, "v")


def test_a_tap_ends_by_itself(scene: Scene, logs: Logs) -> None:
    """After its time, with its channel, and when the process stops."""
    lines = [json.loads(line) for line in scene.get(f"{TAP}?for_s=0").text.splitlines()]
    assert [each.get("reason") for each in lines] == [None, "time"]
    asking = Asking(scene, logs, "for_s=60")
    scene.process.become(ProcessPhase.STOPPING)
    assert asking.lines()[-1]["reason"] == "process_stopping"


def test_a_tap_takes_the_token_everywhere(scene: Scene) -> None:
    """Also on loopback, where the status takes none."""
    assert scene.client.get("/api/v1/status").status_code == 200
    assert scene.client.get(f"{TAP}?for_s=0").status_code == 401
    assert scene.client.request("HEAD", TAP).status_code == 401


def test_head_has_no_records(scene: Scene, logs: Logs) -> None:
    """It is answered at once, and opens no tap."""
    answer = scene.client.request("HEAD", TAP, headers=scene.trusted)
    assert (answer.status_code, answer.content) == (200, b"")
    assert opened(logs) == 0


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ("partition=events", 422, "invalid_partition"),
        ("partition=events:x", 422, "invalid_partition"),
        ("key=6&hex=true", 422, "invalid_key"),
        ("rate=0", 422, "invalid_request"),
        ("rate=1001", 422, "invalid_request"),
        ("for_s=99999", 422, "invalid_request"),
    ],
)
def test_an_invalid_query_is_refused(
    scene: Scene, logs: Logs, query: str, status: int, error: str
) -> None:
    """The error names the wrong parameter."""
    answer = scene.get(f"{TAP}?{query}")
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert opened(logs) == 0


def test_a_channel_that_cannot_be_tapped_says_why(scene: Scene) -> None:
    """One that does not exist, that has enough taps, or does not run."""
    assert scene.get(f"{TAP.replace('member', 'membre')}?for_s=0").status_code == 404
    channel = scene.controller.channels["member"]
    taps = [channel.open_tap(TapFilter(), f"user {n}") for n in range(MOST_TAPS)]
    refused = scene.get(f"{TAP}?for_s=0")
    assert (refused.status_code, refused.json()["error"]) == (409, "tap_refused")
    assert "user 1" in refused.json()["message"]
    for tap in taps:
        channel.close_tap(tap)
    channel.fail(RuntimeError("no"))
    refused = scene.get(f"{TAP}?for_s=0")
    assert (refused.status_code, refused.json()["error"]) == (409, "not_running")


def test_records_that_are_elsewhere_cannot_be_tapped(bare: Scene) -> None:
    """Spark's executors read the records of a channel by reference."""
    processor = {"type": "spark", "reducer": "json:dumps"}
    with running(bare.controller.add(processor=processor, source="by_reference", sink="noop")):
        refused = bare.get(f"{TAP}?for_s=0")
    assert (refused.status_code, refused.json()["error"]) == (409, "tap_refused")
    assert "by_reference" in refused.json()["message"]


def test_a_reader_that_goes_away_ends_its_tap(scene: Scene, logs: Logs) -> None:
    """Whenever that is: the server tells the application, and nothing is left."""
    import asyncio  # noqa: PLC0415 - for this test only

    seen = Event()

    async def ask() -> None:
        async def receive() -> Any:
            await asyncio.sleep(0.3)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body"):
                seen.set()

        path, token = TAP.encode(), scene.trusted["Authorization"].encode()
        scope = {
            "type": "http", "method": "GET", "path": TAP, "raw_path": path, "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"authorization", token)], "scheme": "http",
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "root_path": "",
            "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        }  # fmt: skip
        await scene.client.app(scope, receive, send)

    asyncio.run(asyncio.wait_for(ask(), 30))
    assert seen.is_set()
    assert (opened(logs), closed(logs)) == (1, 1)


RECORD = TappedRecord(
    P0, 1, None, b"key", b'{"card": {"number": 1}, "items": [{"pin": 2, "n": 3}], "x": "\\ud800"}',
    (("a", b"1"), ("b", None)), 10, 1,
)  # fmt: skip


def test_configured_fields_are_masked() -> None:
    """Keys, headers and members of JSON values are masked, also in lists; the rest is unchanged."""
    named = AdminConfig(redact=("key", "headers.a", "value.card.number", "value.items.pin"))
    redaction = Redaction(named.redact)
    assert redaction.key(RECORD.key) == b"***"
    assert redaction.headers(RECORD.headers) == [("a", b"***"), ("b", None)]
    found = json.loads(redaction.value(RECORD.value) or b"")
    assert found["card"] == {"number": "***"}
    assert found["items"] == [{"pin": "***", "n": 3}]
    assert Redaction(()).value(RECORD.value) == RECORD.value
    assert Redaction(("value",)).value(RECORD.value) == b"***"


@pytest.mark.parametrize("value", [b"no json", b'{"a": ', b"[" * 100_000])
def test_a_value_that_cannot_be_masked_in_part_is_masked_whole(value: bytes) -> None:
    """A value that cannot be parsed may have the secret anywhere."""
    record = TappedRecord(P0, 1, None, None, value, (), len(value), 1)
    assert Redaction(("value.card",)).value(record.value) == b"***"
    assert Redaction(("headers.x",)).value(record.value) == value


def test_an_unknown_field_to_mask_is_refused() -> None:
    """A secret must not be shown because of a spelling mistake."""
    for wrong in ("values.card", "value.", "headers", "offset"):
        with pytest.raises(ValueError, match="headers"):
            AdminConfig(redact=(wrong,))


def test_a_key_is_masked_from_the_next_record_on_while_a_tap_is_open(
    scene: Scene, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration may be another one than when the tap was opened."""
    channel, taps = scene.controller.channels["member"], list[Tap]()
    open_tap = channel.open_tap

    def keep(wanted: TapFilter, by: str) -> Tap:
        taps.append(open_tap(wanted, by))
        return taps[-1]

    monkeypatch.setattr(channel, "open_tap", keep)
    asking = Asking(scene, logs, "limit=2&for_s=20&rate=100")
    scene.controller.broker.produce(P0, FakeRecord(key_=b"k"))
    eventually(lambda: taps[0].counts.shown == 1)
    config = scene.controller.config
    admin = config.admin.model_copy(update={"redact": ("key",)})
    changed = config.model_copy(update={"admin": admin})
    monkeypatch.setattr(scene.controller, "config", changed)
    scene.controller.broker.produce(P0, FakeRecord(key_=b"k"))
    assert [each["key"] for each in asking.lines()[1:3]] == ["k", "***"]


class Lines:
    """A client that has lines."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        self.given = lines
        self.asked: list[str] = []

    def get(self, path: str) -> Any:
        """Return the channels."""
        del path
        return {"channels": [{"name": "main", "topics": {"t": 1}}]}

    def lines(self, path: str) -> Iterator[dict[str, Any]]:
        """Return the lines, and note what was asked for."""
        self.asked.append(path)
        return iter(self.given)


def _run(client: Any, **options: Any) -> int:
    wanted = {"partition": None, "rate": 5.0, "as_json": False, "no_values": False, **options}
    return tap_command(None, **wanted)(client)


def _line(**more: Any) -> dict[str, Any]:
    return {
        "kind": "record", "topic": "t", "partition": 0, "offset": 1, "time": None, "key": "k",
        "key_hex": None, "value": None, "value_hex": "ff", "headers": [["h", "x"]], **more,
    }  # fmt: skip


def test_the_command_prints_a_line_for_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters of a record are escaped, and the counts are printed at the end."""
    end = {"kind": "end", "passed": 9, "shown": 2, "over_rate": 7, "reason": "channel_ended"}
    client = Lines({"kind": "counts"}, _line(), _line(value="a\x1b[31m\nb", value_hex=None), end)
    assert _run(client, partition="t:0") == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["t-0:1 - k 0xff h=x", "t-0:1 - k a\\x1b[31m\\nb h=x"]
    assert "2 of 9 records that passed main shown; 7 over the rate" in shown.err
    assert "does not run any more" in shown.err
    assert "partition=t%3A0" in client.asked[0]


def test_the_command_prints_json_and_hides_values(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for a record, without the value where that is not wanted."""
    assert _run(Lines(_line()), as_json=True, no_values=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["key"], found["value"], found["value_hex"]) == ("k", None, None)


def test_hex_without_a_key_is_refused() -> None:
    """It would have no effect."""
    result = CliRunner().invoke(app, ["tap", "--hex"])
    assert result.exit_code == 2
    assert "--key" in result.output


def test_the_command_names_an_unknown_topic() -> None:
    """The partition is one of a topic that no channel reads."""
    with pytest.raises(UsageError, match="no channel reads x"):
        _run(Lines(), partition="x:0")
