"""Adapters: applications that bring events in from elsewhere, to the stream of others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from headrace.apps.elements.app import App
from headrace.apps.elements.plan import Wired
from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError
from headrace.extensions.keyed.codecs import key_bytes
from headrace.extensions.keyed.exact import exact_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.apps.elements.element import KeyFinder
    from headrace.apps.elements.plan import WiredStream

#: Seconds that the brokers have to take an event, and at the end all that are left.
SEND_TIMEOUT = 30.0


class EventProducer(Protocol):
    """A producer of events, as :class:`headrace.kafka.topic_producer.TopicProducer`."""

    @property
    def sent(self) -> int:
        """Return how many records were sent."""

    def send(
        self, records: Iterable[tuple[bytes | None, bytes]], deadline: Deadline, *, time: int
    ) -> None:
        """Send records, of a time in ms. Blocks while there is no room."""

    def flush(self, deadline: Deadline) -> None:
        """Wait until all are stored. Blocks."""


class AdapterApp(App):
    """An application without elements: ``on_start`` puts events to its remote stream.

    ``remote_stream_key_finder`` is set in ``on_init`` before ``super().on_init()`` is called;
    without it events are spread over partitions. Events go to the topic that ``output_stream``
    names, which is an input stream of applications.
    """

    output_stream: ClassVar[str] = ""

    remote_stream_key_finder: KeyFinder | None = None

    _sender: _Sender | None = None

    def on_init(self) -> None:
        """Create the remote stream."""
        self.create_output_stream(self.output_stream, self.remote_stream_key_finder)

    def on_start(self) -> None:
        """Read from elsewhere, and put events, until there are none. Blocks for as long."""
        raise NotImplementedError

    def put(self, value: Any, *, ts: int | None = None) -> None:
        """Send an event to the remote stream; ``ts`` (ms) is its time, by default now.

        Blocks while the client's queue is full. It is stored once ``on_start`` has returned.

        Raises:
            ProduceError: the brokers take no more.
            RuntimeError: the adapter does not run.
            ValueError, TypeError: the value has no key, or is something that JSON does not know.
        """
        if self._sender is None:
            raise RuntimeError(
                f"{type(self).__name__} does not run; call put in on_start, which headrace "
                "elements run calls"
            )
        self._sender.put(value, ts)

    def remote_stream(self) -> WiredStream:
        """Return the stream that events are put to.

        Raises:
            ConfigError: there is none, or the application has more.
        """
        streams, elements = self.wire()
        if elements:
            raise ConfigError([(
                f"element {elements[0].name}: an adapter has no elements; have an App with an "
                "input stream of that name take its events"
            )])  # fmt: skip
        found = [each for each in streams if each.wired is Wired.OUTPUT]
        if len(found) != 1 or len(streams) != 1:
            raise ConfigError([(
                f"adapter {type(self).__name__} has the streams "
                f"{', '.join(each.name for each in streams) or 'none'}, and one output stream is "
                "expected; name it by output_stream, and call super().on_init()"
            )])  # fmt: skip
        return found[0]

    def run(self, producer: EventProducer) -> int:
        """Call ``on_start``, and return how many events the brokers have stored. Blocks.

        ``producer`` is one to the topic of the remote stream.

        Raises:
            ConfigError: there is no remote stream.
            ProduceError: an event was not stored.
        """
        self._sender = _Sender(self.remote_stream(), producer)
        try:
            self.on_start()
        finally:
            sender, self._sender = self._sender, None
            sender.flush()
        return sender.sent


class _Sender:
    """Sends events of a stream. One thread."""

    def __init__(self, stream: WiredStream, producer: EventProducer) -> None:
        self._stream = stream
        self._producer = producer

    @property
    def sent(self) -> int:
        return self._producer.sent

    def put(self, value: Any, ts: int | None) -> None:
        key = self._stream.stream.key_of(value)
        data = exact_json(value, f"a value for stream {self._stream.name!r}")
        record = (None if key is None else key_bytes(key), data)
        at = round(time.time() * 1000) if ts is None else ts
        self._producer.send([record], Deadline.after(SEND_TIMEOUT), time=at)

    def flush(self) -> None:
        self._producer.flush(Deadline.after(SEND_TIMEOUT))
