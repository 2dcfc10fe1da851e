"""Private parts of libraries that are used exist, and versions are bounded."""

from __future__ import annotations

import ast
import asyncio
import re
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import opentelemetry._logs
import opentelemetry.exporter.otlp.proto.http._log_exporter
import opentelemetry.sdk._logs.export
import prometheus_client.exposition
import prometheus_client.metrics
import prometheus_client.registry
import pyarrow as pa
import pymysql.connections
import pyspark
import pytest
import uvicorn
from confluent_kafka import admin, cimpl
from kazoo.client import KazooClient
from kazoo.protocol import connection as kazoo_connection
from py4j.clientserver import ClientServer
from py4j.finalizer import ThreadSafeFinalizer
from pyspark import SparkContext, cloudpickle, daemon
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.pandas import serializers
from pyspark.sql.pandas import types as pandas_types
from pyspark.sql.udf import UserDefinedFunction
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

import headrace

if TYPE_CHECKING:
    from collections.abc import Iterator

    #: A thing, and the names of what is used of it.
    Parts = Iterator[tuple[object, set[str]]]

_PACKAGE = Path(headrace.__file__).parent
_PYPROJECT = _PACKAGE.parent / "pyproject.toml"
_DOUBLES = _PACKAGE / "testing"
_TESTS = _PACKAGE.parent / "tests"
_JARS = Path(pyspark.__file__).parent / "jars"

#: Private names of classes of Headrace, and one that Python's reference has.
_OURS = {
    "_call",
    "_current_frames",
    "_database",
    "_is_alone",
    "_span",
    "_topic",
    "_transactions",
    "_treating",
    "_write",
}

#: What pyspark asks of classes in Spark's jars goes through these.
_CLASSES = {
    "spark-core": {
        "org/apache/spark/SparkContext.class": {"cancelJobGroupAndFutureJobs", "isStopped"},
    },
    "spark-catalyst": {
        "org/apache/spark/sql/catalyst/parser/ParserInterface.class": {"parseQuery"},
    },
    "spark-sql": {
        "org/apache/spark/sql/api/python/ArrowIteratorServer.class": set(),
        "org/apache/spark/sql/api/python/PythonSQLUtils.class": {
            "readArrowStreamFromFile",
            "toDataFrame",
        },
        "org/apache/spark/sql/classic/SparkSession.class": {"sessionState"},
        "org/apache/spark/sql/internal/SessionState.class": {"sqlParser"},
    },
}


class Code:
    """Stand for names in a function's code: attributes of objects that exist only at run time."""

    def __init__(self, function: Any) -> None:
        code = function.__code__
        self.__dict__.update(dict.fromkeys((*code.co_names, *code.co_varnames)))


def kazoo_parts() -> Parts:
    """Yield what the session's client is made to tell and to forget."""
    client = KazooClient()
    yield client, {"_connection", "last_zxid"}
    yield client._connection, {"_connect", "_invoke"}
    yield kazoo_connection, {"PURESASL_AVAILABLE"}


async def _application(scope: object, receive: object, send: object) -> None:
    """Serve nothing."""


def uvicorn_parts() -> Parts:
    """Yield what bounds connections and renews certificates."""
    config = uvicorn.Config(_application)
    loop = asyncio.new_event_loop()
    protocol = H11Protocol(config, ServerState(), {}, _loop=loop)
    loop.close()
    yield protocol, {"app_state", "cycle", "connection_made", "on_response_complete"}
    yield protocol, {"pause_writing", "resume_writing"}
    yield Code(H11Protocol.connection_made), {"connections"}
    yield Code(RequestResponseCycle.__init__), {"response_complete"}
    server = uvicorn.Server(config)
    yield server, {"on_tick", "server_state", "should_exit", "started"}
    yield server.server_state, {"connections"}
    yield Code(uvicorn.Config.load), {"ssl"}


def pyspark_parts() -> Parts:
    """Yield what starts a JVM, forgets a dead one, hands tables over and cancels jobs."""
    yield SparkContext, {"_active_spark_context", "_gateway", "_jvm", "_serialize_to_jvm"}
    yield Code(SparkContext._do_init), {"_accumulatorServer", "_jsc"}
    yield SparkSession, {"_activeSession", "_instantiatedSession"}
    yield Code(SparkSession.__init__), {"_jsparkSession"}
    yield Code(UserDefinedFunction.__init__), {"_judf_placeholder"}
    yield Code(launch_gateway), {"popen_kwargs", "proc"}
    yield ClientServer, {"shutdown"}
    yield ThreadSafeFinalizer, {"finalizers"}
    yield cloudpickle, {"register_pickle_by_value"}
    yield daemon, {"manager", "worker"}
    yield serializers, {"ArrowStreamSerializer"}
    yield pandas_types, {"from_arrow_schema", "to_arrow_schema"}


def confluent_kafka_parts() -> Parts:
    """Yield the extension, for the librdkafka in it, and names that begin as private ones do."""
    yield cimpl, {"__file__", "NewTopic"}
    yield admin, {"AdminClient", "ConfigResource", "OffsetSpec"}
    yield (
        confluent_kafka.KafkaError,
        {
            "_AUTO_OFFSET_RESET",
            "_LOG_TRUNCATION",
            "_FAIL",
            "_FENCED",
            "_PARTITION_EOF",
            "_PURGE_INFLIGHT",
            "_PURGE_QUEUE",
            "_STATE",
            "_AUTHENTICATION",
            "_SSL",
            "_TIMED_OUT",
            "_TRANSPORT",
            "_UNKNOWN_PARTITION",
            "_UNKNOWN_TOPIC",
        },
    )


def prometheus_client_parts() -> Parts:
    """Yield what its package does not name."""
    yield prometheus_client.metrics, {"MetricWrapperBase"}
    yield prometheus_client.registry, {"Collector"}
    yield prometheus_client.exposition, {"choose_encoder"}


def pyarrow_parts() -> Parts:
    """Yield what Arrow's documentation has by this name: a bound would say nothing."""
    yield pa.RecordBatch, {"_import_from_c"}
    yield pa.Array, {"_export_to_c", "_import_from_c"}
    yield pa.DataType, {"_export_to_c", "_import_from_c"}


def opentelemetry_parts() -> Parts:
    """Yield what its logs are made of, which it does not call stable yet."""
    yield opentelemetry._logs, {"LogRecord", "SeverityNumber"}
    yield opentelemetry.sdk._logs, {"ReadableLogRecord"}
    yield opentelemetry.sdk._logs.export, {"LogRecordExportResult"}
    yield opentelemetry.exporter.otlp.proto.http._log_exporter, {"OTLPLogExporter"}


def pymysql_parts() -> Parts:
    """Yield what answers a server that reads local data."""
    yield pymysql.connections.Connection, {"_read_packet", "_read_query_result", "write_packet"}
    yield Code(pymysql.connections.Connection.__init__), {"_local_infile"}
    yield pymysql.connections.MySQLResult, {"_read_load_local_packet", "_read_ok_packet"}


BOUNDED = {
    "PyMySQL": pymysql_parts,
    "confluent-kafka": confluent_kafka_parts,
    "kazoo": kazoo_parts,
    "opentelemetry-sdk": opentelemetry_parts,
    "prometheus-client": prometheus_client_parts,
    "pyspark": pyspark_parts,
    "uvicorn": uvicorn_parts,
}
PARTS = BOUNDED | {"pyarrow": pyarrow_parts}


@pytest.mark.parametrize("library", sorted(PARTS))
def test_each_used_part_of_a_library_exists(library: str) -> None:
    """A version without the part is one that Headrace does not run with."""
    gone = {
        f"{owner!r}: {name}"
        for owner, names in PARTS[library]()
        for name in names
        if not hasattr(owner, name)
    }
    assert gone == set()


@pytest.mark.parametrize("jar", sorted(_CLASSES))
def test_each_called_method_of_the_jvm_exists(jar: str) -> None:
    """The classes are in Spark's jars, and have methods of these names."""
    (path,) = _JARS.glob(f"{jar}_*.jar")
    with zipfile.ZipFile(path) as classes:
        found = {name: classes.read(name) for name in _CLASSES[jar]}
    gone = {
        f"{name}: {method}"
        for name, methods in _CLASSES[jar].items()
        for method in methods
        if method.encode() not in found[name]
    }
    assert gone == set()


@pytest.mark.parametrize("library", sorted(BOUNDED))
def test_a_library_of_which_private_parts_are_used_is_bounded(library: str) -> None:
    """No untested version of the library is installed."""
    text = _PYPROJECT.read_text(encoding="utf-8")
    (wanted,) = set(re.findall(rf'"{library}(?:\[\w+\])?([<>=][^"]*)"', text))
    assert "<" in wanted


def test_each_private_name_is_listed() -> None:
    """A line that is excused for a private name has one of those above, or one of our own."""
    listed = {name for parts in PARTS.values() for _, names in parts() for name in names}
    excused = {
        name
        for path in _PACKAGE.rglob("*.py")
        if _DOUBLES not in path.parents
        for line in path.read_text(encoding="utf-8").splitlines()
        if "# noqa: SLF001" in line
        for name in re.findall(r"(?<!self)\.(_[A-Za-z]\w*)", line.partition("#")[0])
    }
    assert {"_connect", "_jsc", "_PARTITION_EOF"} <= excused
    assert excused - listed == _OURS


#: Private parts of classes of Headrace that tests still use, by file. It may only shrink: a test
#: looks at what the product shows, and hands in doubles of what is to fail.
_IN_TESTS: dict[str, set[str]] = {
    "integration/extensions/spark/channels.py": {"_changed", "_open"},
    "integration/extensions/spark/sql_writer.py": {"_database"},
    "integration/extensions/spark/test_sql_mariadb.py": {"_database", "_offsets"},
    "integration/extensions/spark/test_decode.py": {"_parsed"},
    "integration/outages/test_answers.py": {"_claiming"},
    "integration/outages/test_lost_marks.py": {"_end_topics", "_producer"},
    "sessions.py": {"_client", "_settings"},
    "unit/benchmarks/test_rounds.py": {"_topic"},
    "unit/channel/test_topics.py": {"_check_topics"},
    "unit/config/test_watch.py": {"_report_changes"},
    "unit/controller/test_connecting.py": {"_spark_session"},
    "unit/core/test_decoders.py": {"_options", "_token"},
    "unit/devstack/test_jars.py": {"_locked"},
    "unit/devstack/test_jvm.py": {"_command"},
    "unit/devstack/test_taken_ports.py": {"_answers"},
    "unit/extensions/delta/delta_tables.py": {"_staging"},
    "unit/extensions/delta/test_delta_maintenance.py": {"_staging"},
    "unit/extensions/keyed/test_columns.py": {"_reduced"},
    "unit/extensions/keyed/test_restore.py": {"_under_way"},
    "unit/extensions/keyed/test_sink.py": {"_topics"},
    "unit/extensions/keyed/test_store.py": {"_cache", "_room", "_scan"},
    "unit/extensions/keyed/test_unwritten.py": {"_write"},
    "unit/extensions/spark/test_inputs.py": {"_options"},
    "unit/extensions/spark/test_lane.py": {"_cancel_in_spark"},
    "unit/extensions/spark/test_runtime.py": {"_open_session", "_session"},
    "unit/extensions/sql/sql_tables.py": {"_database"},
    "unit/formats/test_json_by_arrow.py": {"_parsed"},
    "unit/kafka/test_columnar.py": {"_max_bytes"},
    "unit/kafka/test_fencing.py": {"_answers", "_is_stable"},
    "unit/kafka/test_results.py": {"_lock", "_topics"},
    "unit/ops/offsets/test_changing_sinks.py": {"_prolong"},
    "unit/processors/spark_bench.py": {"_line", "_runner", "_waiting"},
    "unit/processors/test_interleavings.py": {"_in_hand", "_open", "_staged", "_waiting"},
    "unit/processors/test_keyed_restore.py": {"_is_busy", "_open", "_wanted_times"},
    "unit/processors/test_reconfigured.py": {"_job_timeout"},
    "unit/processors/test_rhythm.py": {"_changed"},
    "unit/processors/test_spark.py": {"_open", "_waiting"},
    "unit/processors/test_task_interleavings.py": {
        "_in_hand",
        "_line",
        "_open",
        "_runner",
        "_staged",
        "_waiting",
    },
    "unit/telemetry/logs/test_pipe.py": {"_write"},
    "unit/telemetry/test_metrics.py": {"_metrics"},
    "unit/test_daemon.py": {"_live", "_stop", "_wait"},
}

#: Names that classes of ours share with documented ones of the standard library's.
_DOCUMENTED = {"_asdict", "_fields", "_make", "_replace"}


#: A private attribute of an object that is not the one that the code is of.
_FOREIGN = re.compile(r"(?<!self)(?<!cls)\._[A-Za-z]")

#: A private attribute or method where a class says that it has it.
_MEMBER = re.compile(
    r"\b(?:self|cls)\.(_[A-Za-z]\w*)|^ +def (_[A-Za-z]\w*)|^    (_[A-Za-z]\w*):", re.MULTILINE
)


@cache
def private_members() -> frozenset[str]:
    """Return the private names of attributes and methods of Headrace's classes."""
    texts = [path.read_text(encoding="utf-8") for path in _PACKAGE.rglob("*.py")]
    return frozenset(
        name for text in texts for found in _MEMBER.findall(text) for name in found if name
    )


def _members_of(node: ast.ClassDef) -> Iterator[str]:
    for part in ast.walk(node):
        match part:
            case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                yield name


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses(path: Path) -> set[str]:
    """Return the private names that a file uses of other objects than the one it is in."""
    found = set[str]()
    text = path.read_text(encoding="utf-8")
    if not _FOREIGN.search(text) and not re.search(r"attr\(|object\(", text):
        return found
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                pass
            case ast.Attribute(attr=name):
                found.add(name)
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "delattr")
                | ast.Attribute(attr="setattr" | "delattr" | "object"),
                args=[_, ast.Constant(value=str(name)), *_],
            ):
                found.add(name)
    return {name for name in found if _is_private(name)}


def foreign_uses(node: ast.AST, members: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the private names that code uses of objects of other classes than its own."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef():
                yield from foreign_uses(child, members.union(_members_of(child)))
                continue
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                pass
            case ast.Attribute(attr=name) if _is_private(name) and name not in members:
                yield name
        yield from foreign_uses(child, members)


def test_private_parts_are_used_in_their_own_class_alone() -> None:
    """Other objects of the class count too; elements have no public name that users could take."""
    ours = our_names()
    found = {
        str(path.relative_to(_PACKAGE)): uses
        for path in _PACKAGE.rglob("*.py")
        if _FOREIGN.search(text := path.read_text(encoding="utf-8"))
        and (uses := ours.intersection(foreign_uses(ast.parse(text))))
    }
    assert found == {"apps/elements/element.py": {"_call"}}


def our_names() -> frozenset[str]:
    """Return the private names of our classes that neither libraries nor documentation have."""
    of_libraries = {name for parts in PARTS.values() for _, names in parts() for name in names}
    return private_members() - of_libraries - _DOCUMENTED


def test_private_parts_of_our_classes_are_used_in_tests_as_listed() -> None:
    """A use that is new is to be avoided, and one that is gone leaves the list."""
    ours = our_names()
    assert {"_runtime", "_state", "_become"} <= ours
    found = {
        str(path.relative_to(_TESTS)): uses
        for path in _TESTS.rglob("*.py")
        if path != Path(__file__) and (uses := private_uses(path) & ours)
    }
    assert found == _IN_TESTS


def test_no_test_reaches_into_the_runtime_of_a_channel() -> None:
    """A channel's partitions, log, metrics and nodes of the group show what it does."""
    reaching = [
        str(path.relative_to(_TESTS))
        for path in _TESTS.rglob("*.py")
        if path != Path(__file__) and re.search(r"\b_runtime\b", path.read_text(encoding="utf-8"))
    ]
    assert reaching == []
