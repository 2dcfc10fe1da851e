"""A schema registry in a process of its own, and producers that register with it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any, Self

import httpx
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.core.clock import Deadline
from headrace.core.processes import python_command
from headrace.devstack.server import LOOPBACK, free_port
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds in which the process has to answer, or to end.
_WAIT = 60.0

_SERVE = """
import pathlib, signal
from headrace.testing.registry import RegistryServer

with RegistryServer(int(sys.argv[1]), pathlib.Path(sys.argv[2])):
    signal.pause()
"""


class RegistryProcess:
    """The double as a process: a kill leaves its schemas in a file, and its port is the same."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self._file = folder / f"registry-{self._port}.json"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://{LOOPBACK}:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(python_command(_SERVE, str(self._port), str(self._file)))
        assert wait_for(self._answers, Deadline.after(_WAIT)), "the registry does not answer"

    def kill(self) -> None:
        """End it at once, in the middle of an answer if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_WAIT)
            self._process = None

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/", timeout=5).status_code == httpx.codes.NOT_FOUND
        except httpx.HTTPError:
            return False


class AvroProducer:
    """Serializes values by one schema, which it registers with the first, as Confluent's do."""

    def __init__(self, url: str, schema: Any, topic: str = "orders") -> None:
        self._client = SchemaRegistryClient({"url": url})
        self._write = AvroSerializer(
            self._client, json.dumps(schema), conf={"subject.name.strategy": _subject}
        )
        self._context = SerializationContext(topic, MessageField.VALUE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def value(self, **fields: Any) -> bytes:
        """Return the value of a record with these fields."""
        written = self._write(fields, self._context)
        assert isinstance(written, bytes)
        return written


def _subject(context: SerializationContext | None, record: str | None) -> str:
    del context, record
    return "orders-value"
