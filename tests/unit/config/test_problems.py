from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.config.support import CHANNELS, refused

if TYPE_CHECKING:
    from pathlib import Path

DURATION = "a duration such as 250ms, 10s or 5m"
SIZE = "a size such as 512KiB, 16MiB or 1GiB"
TOPIC = "a topic name (letters, digits, '.', '_' and '-', 249 at most)"
NAME = "a name of letters, digits, '.', '_' and '-', 249 at most"
AT_LEAST_1 = "a whole number of at least 1"
NULL_SECTION = "null is not a mapping; fill it in, or leave the key out"
SECTIONS = (
    "instance_id, state_dir, shutdown_timeout, python_path, kafka, zookeeper, spark, logging, "
    "metrics, channels"
)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("instance_id: 5", "instance_id (line 1): 5 is not text; put it in quotes"),
        ("instance_id: a/b", f"instance_id (line 1): 'a/b' is not {NAME}"),
        ("state_dir: [a]", "state_dir (line 1): a list is not a path"),
        (
            "shutdown_timeout: 30",
            "shutdown_timeout (line 1): 30 has no unit; put ms, s, m, h or d behind the number",
        ),
        ("shutdown_timeout: 30sec", f"shutdown_timeout (line 1): '30sec' is not {DURATION}"),
        ("python_path: src", "python_path (line 1): 'src' is not a list, each item a path"),
        ("python_path: [1]", "python_path[0] (line 1): 1 is not text; put it in quotes"),
        ("kafka:", f"kafka (line 1): {NULL_SECTION}"),
        ("kafka: 5", "kafka (line 1): *** is not a mapping"),
        (
            "kafka: {bootstrap_servers: {}}",
            (
                "kafka.bootstrap_servers (line 1): an empty mapping is not a list with at least "
                "one entry, each item a server as host:port (port 9092 by default)"
            ),
        ),
        (
            "kafka: {bootstrap_servers: []}",
            (
                "kafka.bootstrap_servers (line 1): an empty list is not a list with at least "
                "one entry, each item a server as host:port (port 9092 by default)"
            ),
        ),
        (
            "kafka: {bootstrap_servers: 'a, SSL://b'}",
            (
                "kafka.bootstrap_servers[1] (line 1): 'SSL://b' has a protocol; "
                "name host and port only"
            ),
        ),
        (
            "kafka: {tls: true}",
            "kafka.tls (line 1): true is not a mapping or null",
        ),
        (
            "kafka: {tls: {verify_hostname: 'no'}}",
            "kafka.tls.verify_hostname (line 1): 'no' is not true or false",
        ),
        (
            "kafka: {sasl: {username: a, password: b}}",
            (
                "kafka.sasl.mechanism (line 1): is missing; "
                "give PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
            ),
        ),
        (
            "kafka: {sasl: {mechanism: GSSAPI, username: a, password: b}}",
            (
                "kafka.sasl.mechanism (line 1): 'GSSAPI' is not "
                "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
            ),
        ),
        (
            "kafka: {properties: {client.id: [a]}}",
            "kafka.properties.client.id (line 1): is not text, a number, true or false",
        ),
        (
            "kafka: {properties: {client.id: null}}",
            "kafka.properties.client.id (line 1): is not text, a number, true or false",
        ),
        (
            "kafka: {properties: a=b}",
            (
                "kafka.properties (line 1): *** is not a mapping of property names to text, "
                "numbers, true or false"
            ),
        ),
        (
            "zookeeper: {hosts: 'a:2181/b'}",
            (
                "zookeeper.hosts[0] (line 1): 'a:2181/b' has a path; name host and port only "
                "(ZooKeeper's path goes into chroot)"
            ),
        ),
        (
            "zookeeper: {chroot: /a/}",
            (
                "zookeeper.chroot (line 1): '/a/' is not a path such as /headrace, "
                'or "" for the root'
            ),
        ),
        (
            "zookeeper: {session_timeout: 2m}",
            f"zookeeper.session_timeout (line 1): '2m' is not {DURATION}, from 1s to 1m",
        ),
        (
            "zookeeper: {sasl: {mechanism: PLAIN, username: a, password: b}}",
            "zookeeper.sasl.mechanism (line 1): 'PLAIN' is not DIGEST-MD5",
        ),
        (
            "zookeeper: {digest: {username: 'a:b', password: c}}",
            "zookeeper.digest.username (line 1): 'a:b' is not a user name without ':'",
        ),
        (
            "zookeeper: {acl: world}",
            "zookeeper.acl (line 1): 'world' is not open, creator or creator-read-world",
        ),
        (
            "spark: {driver_memory: 256MiB}",
            f"spark.driver_memory (line 1): '256MiB' is not {SIZE}, of at least 512MiB",
        ),
        ("spark: {warm_up: -1}", "spark.warm_up (line 1): -1 is not a whole number from 0 to 1000"),
        (
            "logging: {level: warn}",
            (
                "logging.level (line 1): 'warn' is not debug, info, warning or error; "
                "did you mean warning?"
            ),
        ),
        (
            "logging: {level: null}",
            ("logging.level (line 1): null is not debug, info, warning or error"),
        ),
        (
            "metrics: {port: 70000}",
            "metrics.port (line 1): 70000 is not a whole number from 0 to 65535 or null",
        ),
        (
            "metrics: {port: '${PORT}'}",
            (
                "metrics.port (line 1): ${PORT} expands to something that is not "
                "a whole number from 0 to 65535"
            ),
        ),
        (
            "metrics: {port: '${MISSING}'}",
            (
                "metrics.port (line 1): needs the environment variable MISSING, which is not set; "
                "set it, or give a default: ${MISSING:-default}"
            ),
        ),
        ("metrics: {prot: 1}", "metrics.prot (line 1): is not a known key; did you mean port?"),
        (
            "metrics: {address: 1}",
            "metrics.address (line 1): is not a known key; known here: host, port",
        ),
        ("kafak: {}", "kafak (line 1): is not a known key; did you mean kafka?"),
        ("xyz: {}", f"xyz (line 1): is not a known key; known here: {SECTIONS}"),
    ],
)
def test_mistakes_in_sections_are_named(tmp_path: Path, line: str, problem: str) -> None:
    """A mistake outside the channels gives one sentence with path, line, value and remedy."""
    assert refused(tmp_path, line + CHANNELS, {"PORT": "many"}) == [problem]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("enabled: 1", "enabled: 1 is not true or false"),
        (
            "topics: flights",
            (f"topics: 'flights' is not a list with at least one entry, each item {TOPIC}"),
        ),
        (
            "topics: []",
            (f"topics: an empty list is not a list with at least one entry, each item {TOPIC}"),
        ),
        ("topics: [a, b/c]", f"topics[1]: 'b/c' is not {TOPIC}"),
        ("topics: [2024]", "topics[0]: 2024 is not text; put it in quotes"),
        ("topics: [a, b, a]", "topics: a list names a twice; name each once"),
        (
            "group: ''",
            (
                "group: '' is not a group name (printable text without '/' and without "
                "spaces at its ends)"
            ),
        ),
        ("gruop: g", "gruop: is not a known key; did you mean group?"),
        ("initial_offset: newest", "initial_offset: 'newest' is not earliest or latest"),
        (
            "initial_offset: earlist",
            ("initial_offset: 'earlist' is not earliest or latest; did you mean earliest?"),
        ),
        ("offset_out_of_range: 0", "offset_out_of_range: 0 is not earliest, latest or stop"),
        (
            "coordinator: 3",
            ("coordinator: 3 is not a mapping with type: dynamic, fixed_count or static"),
        ),
        (
            "coordinator: dinamic",
            (
                "coordinator.type: 'dinamic' is not dynamic, fixed_count or "
                "static; did you mean dynamic?"
            ),
        ),
        (
            "coordinator: ${TYPE}",
            (
                "coordinator.type: ${TYPE} expands to something that is not "
                "dynamic, fixed_count or static"
            ),
        ),
        ("coordinator: {weight: 0}", "coordinator.weight: 0 is not a number greater than 0"),
        (
            "coordinator: {type: dynamic, partitions: {}}",
            (
                "coordinator.partitions: is not a known "
                "key; known here: type, rebalance_delay, safety_poll, weight"
            ),
        ),
        (
            "coordinator: fixed_count",
            (f"coordinator.partitions_per_topic: is missing; give {AT_LEAST_1}"),
        ),
        (
            "coordinator: {type: static, partitions: {}}",
            ("coordinator.partitions: an empty mapping is not a mapping with at least one entry"),
        ),
        (
            "coordinator: {type: static, partitions: {flights: [0, 5-3]}}",
            "coordinator.partitions.flights[1]: '5-3' runs backwards; write the lower number first",
        ),
        (
            "coordinator: {type: static, partitions: {a/b: [0]}}",
            f"coordinator.partitions.a/b: the key 'a/b' is not {TOPIC}",
        ),
        ("workers: 2.0", f"workers: 2.0 is not {AT_LEAST_1}"),
        ("workers: '2'", f"workers: '2' is not {AT_LEAST_1}"),
        ("workers: yes", f"workers: true is not {AT_LEAST_1}"),
        ("batch: {max_records: many}", f"batch.max_records: 'many' is not {AT_LEAST_1}"),
        ("batch: {max_bytes: 16mb}", f"batch.max_bytes: '16mb' is not {SIZE}, of at least 1B"),
        ("batch: {linger: -1s}", f"batch.linger: '-1s' is not {DURATION}"),
        ("processor: 5", "processor: *** is not a mapping with type: spark, simple or custom"),
        ("processor: null", "processor: null is not a mapping; fill it in, or leave the key out"),
        ("processor: {}", "processor.type: is missing; give spark, simple or custom"),
        ("processor: {type: [a]}", "processor.type: a list is not spark, simple or custom"),
        (
            "processor: {type: sparc}",
            ("processor.type: 'sparc' is not spark, simple or custom; did you mean spark?"),
        ),
        (
            "processor: {type: spark}",
            ("processor.reducer: is missing; give an import path such as package.module:name"),
        ),
        (
            "processor: {type: spark, reducer: 'a.b'}",
            ("processor.reducer: 'a.b' is not an import path such as package.module:name"),
        ),
        (
            "processor: {type: spark, reducer: 'a:b', retries: 3}",
            (
                "processor.retries: is not a "
                "known key; known here: type, reducer, decode, schema, undecodable, max_records"
            ),
        ),
        (
            "processor: {type: spark, reducer: 'a:b', ddl: a INT}",
            (
                "processor.ddl: is not a "
                "known key; known here: type, reducer, decode, schema, undecodable, max_records"
            ),
        ),
        (
            "processor: {type: simple, max_read_rate: 0}",
            ("processor.max_read_rate: 0 is not a number greater than 0 or null"),
        ),
        (
            "processor: {type: custom, factory: 'a:b', options: [1]}",
            ("processor.options: a list is not a mapping of argument names to values"),
        ),
        (
            "processor: {type: custom, factory: 'a:b', options: {a-b: 1}}",
            "processor.options.a-b: is not the name of an argument in Python",
        ),
        ("max_in_flight: 17", "max_in_flight: 17 is not a whole number from 1 to 16"),
        (
            "sink: 5",
            ("sink: 5 is not a mapping with type: delta, jsonl, console, noop or function or null"),
        ),
        (
            "sink: consol",
            (
                "sink.type: 'consol' is not delta, jsonl, console, noop or function; "
                "did you mean console?"
            ),
        ),
        ("sink: delta", "sink.path: is missing; give a path, or a URL such as s3://bucket/table"),
        (
            "sink: {type: delta, delta: x, path: y}",
            ("sink.delta: is not a known key; known here: type, path, partition_by"),
        ),
        (
            "sink: {path: x}",
            ("sink.type: is missing; give delta, jsonl, console, noop or function"),
        ),
        (
            "sink: {type: delta, path: x, partition_by: [a, a]}",
            "sink.partition_by: a list names a twice; name each once",
        ),
        (
            "sink: 'a/b:c'",
            ("sink.function: 'a/b:c' is not an import path such as package.module:name"),
        ),
        ("buffer: 1GiB", "buffer: '1GiB' is not a mapping"),
        ("idle_time: 1ms", f"idle_time: '1ms' is not {DURATION}, of at least 10ms"),
        ("commit_interval: often", f"commit_interval: 'often' is not {DURATION}"),
        ("on_error: {policy: ignore}", "on_error.policy: 'ignore' is not retry, skip or stop"),
        (
            "on_error: {policy: skip, max_attempts: 0}",
            (f"on_error.max_attempts: 0 is not {AT_LEAST_1} or null"),
        ),
        (
            f"idle_time: {'x' * 100}",
            (f"idle_time: '{'x' * 60}...' is not {DURATION}, of at least 10ms"),
        ),
    ],
)
def test_mistakes_in_a_channel_are_named(tmp_path: Path, fields: str, problem: str) -> None:
    """A mistake in a channel gives one sentence, in which pydantic's tags have no place."""
    name, _, _ = fields.partition(":")
    kept = "\n".join(line for line in CHANNELS.split("\n") if f"    {name}:" not in line)
    place, _, sentence = problem.partition(": ")
    line = kept.count("\n") + 1
    assert refused(tmp_path, f"{kept}    {fields}", {"TYPE": "x"}) == [
        f"channels.flights.{place} (line {line}): {sentence}"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kafka: {}", "channels: is missing; give a mapping with at least one entry"),
        (
            "channels: {}",
            "channels (line 1): an empty mapping is not a mapping with at least one entry",
        ),
        ("channels:", "channels (line 1): null is not a mapping with at least one entry"),
        ("channels: [a]", "channels (line 1): a list is not a mapping with at least one entry"),
        ("channels: {a: }", f"channels.a (line 1): {NULL_SECTION}"),
        ("channels: {a: b}", "channels.a (line 1): *** is not a mapping"),
    ],
)
def test_mistakes_in_the_map_of_channels_are_named(tmp_path: Path, text: str, problem: str) -> None:
    """A file without channels, or with something else in their place, is refused."""
    assert refused(tmp_path, text) == [problem]


def test_a_channel_needs_a_legal_name(tmp_path: Path) -> None:
    """The name of a channel has the form of a topic's."""
    text = CHANNELS.replace("flights:\n", "a channel:\n", 1)
    assert refused(tmp_path, text) == [
        f"channels.a channel (line 3): the key 'a channel' is not {NAME}"
    ]


def test_all_mistakes_are_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    """One loading finds all mistakes, those of references among them, from top to bottom."""
    text = (
        "metrics: {port: -1}\n"
        "kafka: {bootstrap_servers: '${SERVERS}'}\n"
        "logging: {level: loud}\n"
        "channels:\n"
        "  a: {topics: [a], group: g, processor: {type: x}, sink: noop, workers: 0}\n"
        "  b: {topics: [b], group: g, processor: {type: custom, factory: 'a:b'}, sink: noop}\n"
        "unknown: 1\n"
    )
    assert [problem.partition(":")[0] for problem in refused(tmp_path, text)] == [
        "metrics.port (line 1)",
        "kafka.bootstrap_servers (line 2)",
        "logging.level (line 3)",
        "channels.a.workers (line 5)",
        "channels.a.processor.type (line 5)",
        "channels.b.sink (line 6)",
        "unknown (line 7)",
    ]
