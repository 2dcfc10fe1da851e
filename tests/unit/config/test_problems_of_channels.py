from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.config.support import CHANNELS, refused

if TYPE_CHECKING:
    from pathlib import Path

DURATION = "a duration such as 250ms, 10s or 5m"
SIZE = "a size such as 512KiB, 16MiB or 1GiB"
NAME_ONLY = "a topic name (letters, digits, '.', '_' and '-', 249 at most)"
TOPIC = f"{NAME_ONLY} or a pattern that begins with '^'"
NO_PATTERN = "is not a regular expression that can be used"
COUNT = "a whole number from 1 to 1000000000"
WORKERS = "a whole number from 1 to 256"
TYPES = "spark, arrow, keyed, rekey, streams, simple or custom"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("enabled: 1", "enabled: 1 is not true or false"),
        (
            "topics: 5",
            (f"topics: 5 is not a list with at least one entry, each item {TOPIC}"),
        ),
        (
            "topics: []",
            (f"topics: an empty list is not a list with at least one entry, each item {TOPIC}"),
        ),
        ("topics: [a, b/c]", f"topics[1]: 'b/c' is not {TOPIC}"),
        ('topics: ["a\\n\\e"]', rf"topics[0]: 'a\n\x1b' is not {TOPIC}"),
        ('"wor\\nkers": 1', r"wor\nkers: is not a known key; did you mean workers?"),
        (
            "topics: [a, '^b(c']",
            f"topics[1]: '^b(c' {NO_PATTERN}: missing ), unterminated subpattern at position 2",
        ),
        (
            "topics: ['^[[a]']",
            f"topics[0]: '^[[a]' {NO_PATTERN}: Possible nested set at position 2",
        ),
        (
            'topics: ["^(?\\n)"]',
            rf"topics[0]: '^(?\n)' {NO_PATTERN}: unknown extension ?\n at position 2",
        ),
        (
            "topics: ['^a{9999999999999}']",
            f"topics[0]: '^a{{9999999999999}}' {NO_PATTERN}: the repetition number is too large",
        ),
        ("topics: ['^(${TYPE}']", f"topics[0]: ^(${{TYPE}} expands to something that {NO_PATTERN}"),
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
        ("coordinator: {weight: 0}", f"coordinator.weight: 0 is not {COUNT}"),
        (
            "coordinator: {type: dynamic, partitions: {}}",
            "coordinator.partitions: is not a known key here; it is one with type: static",
        ),
        (
            "coordinator: fixed_count",
            (f"coordinator.partitions_per_topic: is missing; give {COUNT}"),
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
            f"coordinator.partitions.a/b: the key 'a/b' is not {NAME_ONLY}",
        ),
        ("offsets: disk", "offsets.type: 'disk' is not kafka or zookeeper"),
        (
            "offsets: {fencing: transaction}",
            (
                "offsets.fencing: 'transaction' is not metadata or transactions; "
                "did you mean transactions?"
            ),
        ),
        (
            "offsets: {type: zookeeper, fencing: metadata}",
            "offsets.fencing: is not a known key here; it is one with type: kafka",
        ),
        ("workers: 2.0", f"workers: 2.0 is not {WORKERS}"),
        ("workers: '2'", f"workers: '2' is not {WORKERS}"),
        (f"workers: 0x{'f' * 80}", f"workers: a very large number is not {WORKERS}"),
        ("workers: yes", f"workers: true is not {WORKERS}"),
        ("batch: {max_records: many}", f"batch.max_records: 'many' is not {COUNT}"),
        ("batch: {max_bytes: 16mb}", f"batch.max_bytes: '16mb' is not {SIZE}, of at least 1B"),
        ("batch: {linger: -1s}", f"batch.linger: '-1s' is not {DURATION}"),
        (
            "processor: 5",
            f"processor: *** is not a mapping with type: {TYPES}",
        ),
        (
            "processor: spark",
            f"processor: *** is not a mapping with type: {TYPES}",
        ),
        ("processor: null", "processor: null is not a mapping; fill it in, or leave the key out"),
        (
            "processor: {}",
            f"processor.type: is missing; give {TYPES}",
        ),
        (
            "processor: {type: [a]}",
            f"processor.type: a list is not {TYPES}",
        ),
        (
            "processor: {type: sparc}",
            (f"processor.type: 'sparc' is not {TYPES}; did you mean spark?"),
        ),
        (
            "processor: {type: spark}",
            (
                "processor.reducer: is missing; give an import path such as package.module:name, "
                "or a query as sql"
            ),
        ),
        (
            "processor: {type: spark, reducer: 'a:b', sql: select 1}",
            "processor.sql: is given beside reducer; give one of them",
        ),
        (
            "processor: {type: spark, sql: select 1, arrow: 'a:b', result: a INT}",
            "processor.arrow: is given beside sql; give one of them",
        ),
        (
            "processor: {type: arrow, reducer: 'a:b', decode: json}",
            "processor.schema: is missing; decode: json needs the columns to decode",
        ),
        (
            "processor: {type: spark, arrow: 'a:b'}",
            "processor.result: is missing; arrow needs the columns that it returns",
        ),
        (
            "processor: {type: spark, reducer: 'a:b', result: a INT}",
            "processor.result: exists only with arrow; write that, or leave the key out",
        ),
        (
            "processor: {type: spark, sql: select 1, reload: true}",
            (
                "processor.reload: exists only with code of your own, as a reducer; write that, or "
                "leave the key out"
            ),
        ),
        (
            "processor: {type: spark, sql: ' '}",
            "processor.sql: ' ' is not text or null",
        ),
        (
            "processor: {type: spark, reducer: 'a.b'}",
            "processor.reducer: 'a.b' is not an import path such as package.module:name or null",
        ),
        (
            "processor: {type: spark, reducer: 'a:b', retries: 3}",
            (
                "processor.retries: is not a known "
                "key; known here: reducer, sql, arrow, result, type, reload, max_records, "
                "target_duration, decode, decoder_options, schema, reader_schema, timestamps, "
                "max_rate"
            ),
        ),
        (
            "processor: {type: spark, reducer: 'a:b', ddl: a INT}",
            (
                "processor.ddl: is not a known "
                "key; known here: reducer, sql, arrow, result, type, reload, max_records, "
                "target_duration, decode, decoder_options, schema, reader_schema, timestamps, "
                "max_rate"
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
            (
                "sink: *** is not a mapping with type: delta, sql, duckdb, "
                "kafka, jsonl, console, noop, "
                "custom, several or function or null"
            ),
        ),
        (
            "sink: consol",
            (
                "sink.type: 'consol' is not delta, sql, duckdb, "
                "kafka, jsonl, console, noop, custom, "
                "several or function; did you mean console?"
            ),
        ),
        ("sink: delta", "sink.path: is missing; give a path"),
        (
            "sink: {type: delta, path: 's3://bucket/table'}",
            (
                "sink.path: 's3://bucket/table' is a URL; give a folder, of this host or one that "
                "all executors see"
            ),
        ),
        (
            "sink: {type: delta, delta: x, path: y}",
            (
                "sink.delta: is not a known key; known here: type, path, partition_by, "
                "schema_changes, mode, key, merge, merge_limit, origin, compact_every, "
                "log_retention, file_retention"
            ),
        ),
        (
            "sink: {path: x}",
            (
                "sink.type: is missing; give delta, sql, duckdb, "
                "kafka, jsonl, console, noop, custom, "
                "several or function"
            ),
        ),
        (
            "sink: {type: several, outputs: {}}",
            "sink.outputs: an empty mapping is not a mapping with at least one entry",
        ),
        (
            "sink: {type: several, outputs: {a: {type: several, outputs: {b: noop}}}}",
            (
                "sink.outputs.a.type: 'several' is not delta, sql, duckdb, "
                "kafka, jsonl, console, noop or "
                "custom"
            ),
        ),
        (
            "sink: {type: several, outputs: {a: {type: delta}}}",
            "sink.outputs.a.path: is missing; give a path",
        ),
        (
            "sink: {type: custom, factory: 'a.b'}",
            (
                "sink.factory: 'a.b' is not an import path such as package.module:name, or the "
                "name of a plug-in"
            ),
        ),
        (
            "sink: {type: custom, factory: 'a:b', options: {a-b: 1}}",
            "sink.options.a-b: is not the name of an argument in Python",
        ),
        (
            "sink: {type: custom, factory: 'a:b', guarantee: twice}",
            "sink.guarantee: 'twice' is not at_least_once or exactly_once",
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
        (
            "rejects: {failing: ignore}",
            "rejects.failing: 'ignore' is not fail, skip or dead_letter",
        ),
        (
            "retry: {attempts: 0}",
            (f"retry.attempts: 0 is not {COUNT} or null"),
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
