"""Adapters: the key that a remote stream's events get, and what is no adapter."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner
from typing_extensions import override

from headrace.apps.elements import AdapterApp, commands
from headrace.cli import app
from headrace.core.errors import ConfigError
from headrace.kafka.errors import ProduceError
from tests.unit.apps.elements.programs import Sales

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.core.clock import Deadline

HERE = "tests.unit.apps.elements.test_adapter"


class Feed(AdapterApp):
    """Puts two events, with the key finder of the document."""

    output_stream = "raw"

    @override
    def on_init(self) -> None:
        self.remote_stream_key_finder = lambda event: [event["theKeyField"]]
        super().on_init()

    @override
    def on_start(self) -> None:
        self.put({"theKeyField": 7}, ts=5)
        self.put({"theKeyField": "a"}, ts=6)


class Producer:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes, int]] = []
        self.sent = 0
        self.is_flushed = False

    def send(
        self, records: Iterable[tuple[bytes | None, bytes]], deadline: Deadline, *, time: int
    ) -> None:
        """Keep records."""
        assert not deadline.expired
        self.records += ((key, value, time) for key, value in records)
        self.sent = len(self.records)

    def flush(self, deadline: Deadline) -> None:
        """Note that all are stored."""
        assert not deadline.expired
        self.is_flushed = True


def test_events_of_a_remote_stream_have_the_key_that_its_finder_finds() -> None:
    """They are stored once the adapter has ended."""
    producer = Producer()
    assert Feed().run(producer) == 2
    assert producer.is_flushed
    assert producer.records == [
        (b"7", b'{"theKeyField":7}', 5),
        (b"a", b'{"theKeyField":"a"}', 6),
    ]


def test_without_a_key_finder_events_have_no_key() -> None:
    """They are spread over the partitions of the other application's topic."""

    class Plain(Feed):
        @override
        def on_init(self) -> None:
            AdapterApp.on_init(self)

    producer = Producer()
    Plain().run(producer)
    assert [key for key, *_ in producer.records] == [None, None]


def test_what_was_put_is_stored_though_the_adapter_fails() -> None:
    """The error is raised then; an event without its key names the stream."""

    class Failing(Feed):
        @override
        def on_start(self) -> None:
            super().on_start()
            self.put({})

    producer = Producer()
    with pytest.raises(KeyError, match="theKeyField"):
        Failing().run(producer)
    assert producer.is_flushed
    with pytest.raises(RuntimeError, match="Failing does not run; call put in on_start"):
        Failing().put({})


class Interrupted(Producer):
    """Gets a signal in its flush, after which it says whether all was stored."""

    def __init__(self, error: ProduceError | None) -> None:
        super().__init__()
        self._error = error

    @override
    def flush(self, deadline: Deadline) -> None:
        signal.raise_signal(signal.SIGTERM)
        super().flush(deadline)
        if self._error is not None:
            raise self._error


class Endless(Feed):
    """Puts two events, and gets a signal."""

    @override
    def on_start(self) -> None:
        super().on_start()
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("adapter", [Feed, Endless])
@pytest.mark.parametrize(
    "outcome",
    [
        (None, 0, "2 events put to raw"),
        (ProduceError("1 of 2 records did not reach topic 'raw'"), 1, "1 of 2 records did not"),
    ],
)
def test_a_signal_ends_an_adapter_only_once_all_is_stored(
    adapter: type[Feed],
    outcome: tuple[ProduceError | None, int, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It waits for the flush, and the exit code says whether that has stored all."""
    error, code, words = outcome
    producer = Interrupted(error)
    monkeypatch.setattr(commands, "TopicProducer", lambda *_: producer)
    monkeypatch.setattr(commands, "KafkaTopicCatalog", Catalog)
    before = signal.getsignal(signal.SIGTERM)
    assert commands.adapt(adapter(), "localhost:9092", {}, None, print_only=False) == code
    assert words in capsys.readouterr().err
    assert producer.is_flushed
    assert signal.getsignal(signal.SIGTERM) is before


class Catalog:
    """Has each topic."""

    def __init__(self, *_: object) -> None:
        pass

    def describe(self, names: list[str], _: Deadline) -> dict[str, None]:
        """Return the topics."""
        return dict.fromkeys(names)

    def close(self) -> None:
        """Close nothing."""


class Unnamed(AdapterApp):
    """Forgets to call super().on_init()."""

    @override
    def on_init(self) -> None:
        pass


class WithElement(AdapterApp):
    """Has an element."""

    output_stream = "raw"

    @override
    def on_init(self) -> None:
        super().on_init()
        self.create_element(Sales)


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        (Unnamed, "adapter Unnamed has the streams none, and one output stream is expected; name"),
        (
            WithElement,
            "element Sales: an adapter has no elements; have an App with an input stream",
        ),
        (AdapterApp, "stream : the name becomes part of a topic's"),
    ],
)
def test_what_is_no_adapter_is_refused_with_the_next_step(
    adapter: type[AdapterApp], words: str
) -> None:
    """One output stream is expected, and no element."""
    with pytest.raises(ConfigError, match=words):
        adapter().remote_stream()


def test_an_adapter_is_shown_and_has_no_configuration() -> None:
    """It is no channel."""
    done = CliRunner().invoke(app, ["elements", "show", "--app", f"{HERE}:Feed"])
    assert done.stdout.startswith("adapter Feed puts raw by "), done.output
    printed = ["elements", "run", "--app", f"{HERE}:Feed", "--print-config"]
    refused: Any = CliRunner().invoke(app, printed)
    assert refused.exit_code == 2
    assert "adapter Feed is no channel, so there is no configuration to print" in refused.output
