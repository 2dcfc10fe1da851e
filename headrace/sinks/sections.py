"""The sections of the sinks that come with the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from headrace.config.errors import FieldConflict
from headrace.config.models.base import OnlyWith, Restarts
from headrace.config.models.channel import KafkaOffsetsConfig
from headrace.config.models.registry import WriterSchemaConfig
from headrace.config.models.sink import OUTPUTS, SinkConfig, single_sinks
from headrace.config.types.scalars import (
    Count,
    Flag,
    ImportPath,
    LocalPath,
    Name,
    SinkFactory,
    TopicName,
)
from headrace.config.types.secrets import Options, reveal_all
from headrace.core.extras import Extra
from headrace.core.findings import error, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import ChannelConfig
    from headrace.config.errors import ConfigProblem, Steps
    from headrace.config.models.sink import SinkSite
    from headrace.core.findings import Finding
    from headrace.sinks.contract import Sink

#: The end of a sentence that begins with what stores rows and offsets.
ATOMIC = "takes rows and offsets in one transaction and refuses repetitions"

#: Rows of records that are read again, where each is added.
APPENDED_AGAIN = "rows are appended again, so that they are there twice"

#: The same, where each is merged into the one with its key.
MERGED_AGAIN = "rows are merged again into those that are there, so that sums have them twice"


class KafkaSinkConfig(SinkConfig):
    """Records in the cluster that is read, in one transaction with the offsets they are of."""

    only: ClassVar = {
        "writer_schema": (OnlyWith.none_of("encode", "none", example="encode: avro"),),
    }

    writes_records: ClassVar[bool] = True

    type: Restarts[Literal["kafka"]] = "kafka"
    """This sink."""

    topic: Restarts[TopicName | None] = None
    """The topic that rows go to, which is there already; null: the column ``topic`` says it."""

    encode: Restarts[Literal["none", "avro", "protobuf", "json_schema"]] = "none"
    """The form of values. They are text or bytes that the reducer makes (none), or are written from
    a column of structs in Avro (avro), Protobuf (protobuf) or JSON (json_schema), with ids of a
    schema registry."""

    writer_schema: Restarts[WriterSchemaConfig] = WriterSchemaConfig()
    """The schema of encode, and its subject in the registry."""

    loop: Restarts[Flag] = False
    """Allow the channel to read that topic itself: each result comes back as a record, which the
    reducer has to know and pass over, or it goes round forever."""

    to_all: Restarts[Flag] = False
    """Write each record to each partition of the topic, whatever its key. Only with the processor
    keyed."""

    @property
    def topic_written(self) -> str | None:
        return self.topic

    @property
    def exactly_once(self) -> str:
        return (
            "the brokers take records and offsets in one transaction, as readers with "
            "isolation.level=read_committed see"
        )

    @property
    def transaction(self) -> str:
        return "kafka"

    @property
    def takes_registry(self) -> str | None:
        return None if self.encode == "none" else "encode"

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        return ((("encode",), Extra.PROTOBUF),) if self.encode == "protobuf" else ()

    def conflicts(self) -> Iterator[FieldConflict]:
        yield from super().conflicts()
        if self.encode != "protobuf" and self.writer_schema.message is not None:
            yield FieldConflict(
                ("writer_schema", "message"), "exists only with encode: protobuf; leave it out"
            )
        if self.encode == "protobuf" and self.writer_schema.text is not None:
            yield FieldConflict(
                ("writer_schema", "text"),
                "is not read of Protobuf; give file, which protoc --descriptor_set_out writes",
            )

    def refused(self) -> Iterator[ConfigProblem]:
        chosen = self.writer_schema
        given = "file" if chosen.file is not None else "text" if chosen.text is not None else None
        if self.encode == "none" or given is None:
            return
        if self.encode == "protobuf" and not Extra.PROTOBUF.installed:
            return
        from headrace.formats.writer import schema_fault  # noqa: PLC0415 - for few sinks

        fault = schema_fault(self.encode, chosen)
        if fault is not None:
            yield ("writer_schema", given), fault

    @property
    def replayed(self) -> str:
        return "records are produced again, so that they are there twice"

    @property
    def irreplaceable(self) -> str:
        return (
            "the records of a topic cannot be taken back; replay with append, to another topic "
            "where readers must not see them twice"
        )

    def _conflicts_to_all(self, channel: ChannelConfig, at: Steps) -> Iterator[FieldConflict]:
        """Yield what else writes to the topic, and not to each partition."""
        others = [
            ".".join(map(str, steps))
            for steps, each in single_sinks(channel.sink).items()
            if isinstance(each, KafkaSinkConfig) and each.topic == self.topic and not each.to_all
        ]
        if channel.rejects.topic == self.topic:
            others.append("rejects")
        if others:
            yield FieldConflict(
                (*at, "to_all"),
                f"is true, and {' and '.join(others)} would write to {self.topic} as well, each "
                "record to one partition; name another topic",
            )

    def conflicts_in(self, channel: ChannelConfig, at: Steps) -> Iterator[FieldConflict]:
        if self.to_all and channel.processor.type != "keyed":
            yield FieldConflict(
                (*at, "to_all"),
                f"goes with the processor keyed, and this is {channel.processor.type}; leave it "
                "out",
            )
        elif self.to_all and self.topic is not None:
            yield from self._conflicts_to_all(channel, at)
        if self.encode != "none" and channel.processor.fitting_sinks is not None:
            yield FieldConflict(
                (*at, "encode"),
                f"is {self.encode}, which writes columns, and a {channel.processor.type} processor "
                "makes values itself; leave it out",
            )
        comes_back = self.topic is not None and channel.subscription.covers(self.topic)
        if comes_back and not self.loop:
            yield FieldConflict(
                (*at, "topic"),
                f"is {self.topic}, which the channel reads, so that each result would come back; "
                "name another topic, or write loop: true if the reducer passes over its own",
            )
        if (
            isinstance(channel.offsets, KafkaOffsetsConfig)
            and channel.offsets.fencing != "metadata"
        ):
            yield FieldConflict(
                ("offsets", "fencing"),
                f"is {channel.offsets.fencing}, and a member has one transactional producer, "
                "which is the Kafka sink's: what it stores counts at a start; leave it out",
            )

    @override
    def build(self, site: SinkSite) -> Sink[Any]:
        from headrace.kafka import ResultTransactions  # noqa: PLC0415 - for this sink only
        from headrace.kafka.clients import client_properties  # noqa: PLC0415
        from headrace.sinks.kafka import KafkaSink  # noqa: PLC0415

        transactions = site.share(
            "kafka",
            lambda: ResultTransactions(client_properties(site.kafka), site.group, site.member),
        )
        writer = None
        if self.encode != "none" and site.registry is not None:
            from headrace.formats.writer import ValueWriter  # noqa: PLC0415 - for few sinks

            writer = ValueWriter(self.encode, self.writer_schema, site.registry)
        return KafkaSink(transactions, self.topic, writer)


class JsonLinesSinkConfig(SinkConfig):
    """JSON lines in a file."""

    type: Restarts[Literal["jsonl"]] = "jsonl"
    """This sink."""

    path: Restarts[LocalPath]
    """The file that rows are appended to; several processes may share it."""

    @property
    def replayed(self) -> str:
        return APPENDED_AGAIN

    def check(self) -> Iterator[Finding]:
        folder = self.path.parent
        if folder.is_dir():
            yield ok("sink", f"{self.path} in a folder that exists")
        else:
            yield error("sink", f"{folder} is no folder", "create it, or correct sink.path")

    @override
    def build(self, site: SinkSite) -> Sink[Any]:
        from headrace.sinks.jsonl import JsonLinesSink  # noqa: PLC0415 - for this sink only

        return JsonLinesSink(self.path)


class ConsoleSinkConfig(SinkConfig):
    """A few rows of each micro-batch on standard output, for a look."""

    keeps_output: ClassVar[bool] = False

    type: Restarts[Literal["console"]] = "console"
    """This sink."""

    rows: Restarts[Count] = 20
    """The number of rows to print of each micro-batch."""

    @override
    def build(self, site: SinkSite) -> Sink[Any]:
        from headrace.sinks.console import ConsoleSink  # noqa: PLC0415 - for this sink only

        return ConsoleSink(rows=self.rows)


class NoopSinkConfig(SinkConfig):
    """Results are computed and dropped, for measurements."""

    keeps_output: ClassVar[bool] = False

    type: Restarts[Literal["noop"]] = "noop"
    """This sink."""

    @override
    def build(self, site: SinkSite) -> Sink[Any]:
        from headrace.sinks.console import NoopSink  # noqa: PLC0415 - for this sink only

        return NoopSink()


class CustomSinkConfig(SinkConfig):
    """A custom sink."""

    type: Restarts[Literal["custom"]] = "custom"
    """This sink."""

    factory: Restarts[SinkFactory]
    """The class or function that returns a sink, or the name of a plug-in."""

    options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """The keyword arguments of the factory."""

    guarantee: Restarts[Literal["at_least_once", "exactly_once"]] = "at_least_once"
    """The least that the sink has to promise; it is asked at the start."""

    def keyword_arguments(self) -> dict[str, Any]:
        """Return ``options`` with the secrets in plain text, for the factory only."""
        return reveal_all(self.options)

    @property
    def exactly_once(self) -> str | None:
        # nothing is imported here: what the file demands is asked of the sink at the start
        if self.guarantee != "exactly_once":
            return None
        return f"the sink of {self.factory}, asked at the start, {ATOMIC}"

    @property
    def at_least_once(self) -> str:
        return (
            f"the sink of {self.factory} need not keep offsets, so rows may be written again "
            "after a crash; guarantee: exactly_once demands that it does"
        )

    @property
    def place(self) -> object:
        return self.factory, self.options

    @property
    def code(self) -> str:
        return self.factory

    def check(self) -> Iterator[Finding]:
        from headrace.core.errors import ImportPathError  # noqa: PLC0415 - imports users' code
        from headrace.core.imports import load_factory  # noqa: PLC0415

        try:
            load_factory(self.factory, self.options)
        except ImportPathError as problem:
            yield error("sink", str(problem), "correct the path or the code")
        else:
            yield ok("sink", self.factory)

    @override
    def build(self, site: SinkSite) -> Sink[Any]:
        from headrace.sinks.custom import custom_sink  # noqa: PLC0415 - for this sink only

        return custom_sink(self)


class FunctionSinkConfig(SinkConfig):
    """A custom function, for the simple processor."""

    takes_results: ClassVar[bool] = False
    keeps_output: ClassVar[bool] = False

    type: Restarts[Literal["function"]] = "function"
    """This sink."""

    function: Restarts[ImportPath]
    """The function that gets each batch or record."""

    @property
    def code(self) -> str:
        return self.function

    @override
    def build(self, site: SinkSite) -> Sink[Any]:
        raise AssertionError("the simple processor calls the function itself")


class SeveralSinkConfig(SinkConfig):
    """A sink for each of the results that a reducer returns, by their names."""

    type: Restarts[Literal["several"]] = "several"
    """This sink."""

    outputs: Restarts[Annotated[Mapping[Name, Annotated[SinkConfig, OUTPUTS]], Field(min_length=1)]]
    """The sinks by the names of the results. Those that keep no offsets are written first, the
    others in the order of the file; tables of one database and topics together."""

    def conflicts(self) -> Iterator[FieldConflict]:
        for (first, one), (second, other) in combinations(self.outputs.items(), 2):
            if one.place is not None and (one.type, one.place) == (other.type, other.place):
                yield FieldConflict(
                    ("outputs", second),
                    f"goes where {first} goes; give it a table of its own, or have the reducer "
                    "return both as one result",
                )

    @property
    def outputs_by_steps(self) -> Mapping[Steps, SinkConfig]:
        return {("outputs", name): output for name, output in self.outputs.items()}

    @property
    def exactly_once(self) -> str | None:
        if self._weakest is not None:
            return None
        return f"each output {ATOMIC}; one that a crash left behind gets what it lacks"

    @property
    def at_least_once(self) -> str:
        assert self._weakest is not None, "an output writes rows again"
        name, output = self._weakest
        return f"output {name}: {output.at_least_once}"

    @property
    def _weakest(self) -> tuple[str, SinkConfig] | None:
        """Return the first output that keeps no offsets: it decides."""
        return next((each for each in self.outputs.items() if each[1].exactly_once is None), None)

    @property
    def replayed(self) -> str:
        return "; ".join(f"output {name}: {each.replayed}" for name, each in self.outputs.items())

    @property
    def irreplaceable(self) -> str:
        return (
            "several outputs are not replaced in one transaction; remove their rows by hand and "
            "replay with append, or give each a channel of its own"
        )

    @override
    def build(self, site: SinkSite) -> Sink[Any]:
        from headrace.sinks.factory import build_several  # noqa: PLC0415 - for this sink only

        return build_several(self.outputs, site)
