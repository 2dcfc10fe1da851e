from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.config import Config
from headrace.config.former import FORMER_KEYS, FORMER_VALUES
from headrace.config.problems import Shape, choices, field_shape, fields
from tests.unit.config.support import CHANNELS, refused

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config.errors import Steps

DURATION = "a duration such as 250ms, 10s or 5m"
SIZE = "a size such as 512KiB, 16MiB or 1GiB"
NAME = "a name of letters, digits, '.', '_' and '-', 249 at most"
NULL_SECTION = "null is not a mapping; fill it in, or leave the key out"
SECTIONS = (
    "instance_id, state_dir, shutdown_timeout, python_path, kafka, zookeeper, registry, spark, "
    "logging, admin, metrics, tracing, reload, topologies, channels"
)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("instance_id: 5", "instance_id (line 1): 5 is not text; put it in quotes"),
        ("instance_id: a/b", f"instance_id (line 1): 'a/b' is not {NAME}"),
        ("state_dir: [a]", "state_dir (line 1): a list is not a path"),
        (
            "shutdown_timeout: 30",
            "shutdown_timeout (line 1): 30 has no unit; put ms, s, m, h or d after the number",
        ),
        (
            "shutdown_timeout: 30sec",
            f"shutdown_timeout (line 1): '30sec' is not {DURATION}, of at least 1s",
        ),
        ("shutdown_timeout: 0", f"shutdown_timeout (line 1): 0 is not {DURATION}, of at least 1s"),
        ("python_path: 5", "python_path (line 1): 5 is not a list, each item a path"),
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
            "zookeeper.acl (line 1): 'world' is not open, creator or creator-read-world or null",
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
            "metrics.address (line 1): is not a known key; known here: host, port, otlp",
        ),
        ("kafak: {}", "kafak (line 1): is not a known key; did you mean kafka?"),
        ("xyz: {}", f"xyz (line 1): is not a known key; known here: {SECTIONS}"),
    ],
)
def test_mistakes_in_sections_are_named(tmp_path: Path, line: str, problem: str) -> None:
    """A mistake outside the channels gives one sentence with path, line, value and remedy."""
    assert refused(tmp_path, line + CHANNELS, {"PORT": "many"}) == [problem]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kafka: {}", "channels: is missing; give a mapping with at least one entry"),
        (
            "channels: {}",
            "channels (line 1): an empty mapping is not a mapping with at least one entry",
        ),
        ("channels:", "channels (line 1): null is not a mapping"),
        ("channels: [a]", "channels (line 1): a list is not a mapping"),
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


@pytest.mark.parametrize(
    ("section", "former", "now"),
    [
        ("tracing", "one_in", "sample_one_in"),
        ("channels.flights.coordinator", "safety_poll", "resync_interval"),
    ],
)
def test_a_former_key_is_an_error_that_names_the_new_one(
    tmp_path: Path, section: str, former: str, now: str
) -> None:
    """A key that was renamed is refused, and the sentence says what it is called now."""
    file = {
        "tracing": f"tracing: {{{former}: 5}}\n{CHANNELS}",
        "channels.flights.coordinator": f"{CHANNELS}    coordinator: {{{former}: 5s}}\n",
    }[section]
    (problem,) = refused(tmp_path, file)
    assert problem.startswith(f"{section}.{former} (line ")
    assert problem.endswith(f": is called {now} now; write {now} in its place")


@pytest.mark.parametrize("kind", ["keyed, reducer: 'a:b'", "rekey, key: value.id"])
def test_a_former_value_is_an_error_that_names_the_new_one(tmp_path: Path, kind: str) -> None:
    """The engine that was called inline is called as the processor is that runs on it."""
    file = (
        "channels: {a: {topics: [t], group: g, sink: {type: kafka, topic: u},"
        f" processor: {{type: {kind}, engine: inline}}}}}}\n"
    )
    (problem,) = refused(tmp_path, file)
    assert problem == (
        "channels.a.processor.engine (line 1): is called arrow now; write arrow in its place"
    )


def test_former_keys_are_keys_no_more() -> None:
    """No field has a former key's name where that stood, and each former value is none now."""
    for place in FORMER_KEYS:
        assert all(name != place[-1] for name in names_at(place[:-1])), place
    for place, values in FORMER_VALUES.items():
        found = [choices(shape) for shape in shapes_at(place)]
        assert found, place
        assert all(set(values.values()) <= set(each) for each in found), place
        assert not any(set(values) & set(each) for each in found), place


def shapes_at(place: Steps) -> list[Shape]:
    """Return the shapes of the fields that can stand in a place of a former key or value."""
    found = [Shape(Config)]
    for step in place:
        found = [inner for shape in found for inner in _below(shape, step)]
    return found


def _below(shape: Shape, step: str | int) -> list[Shape]:
    if shape.is_mapping and not shape.sections:
        return [shape.items()]
    named = (dict(fields(section)).get(str(step)) for section in shape.sections)
    return [field_shape(field) for field in named if field is not None]


def names_at(place: Steps) -> set[str]:
    """Return the names of the fields of all sections that can stand in a place."""
    sections = (section for shape in shapes_at(place) for section in shape.sections)
    return {name for section in sections for name, _ in fields(section)}
