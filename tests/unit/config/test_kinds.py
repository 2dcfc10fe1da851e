from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from headrace.config.expand import Expanded
from headrace.config.models.zookeeper import Chroot
from headrace.config.types.addresses import KafkaServers, ZooKeeperServers
from headrace.config.types.scalars import (
    Count,
    Flag,
    FreeText,
    GroupName,
    ImportPath,
    Port,
    PositiveNumber,
    TopicName,
)
from headrace.config.types.topics import MAX_PARTITION, PartitionNumbers, PartitionSet

Positive = Annotated[float, PositiveNumber()]


def _read(annotation: Any, value: object) -> Any:
    return TypeAdapter(annotation).validate_python(value)


def _from_reference(text: str) -> Expanded:
    return Expanded.of(text, "${X}", from_file=False)


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Count, 1, 1),
        (Count, _from_reference("12"), 12),
        (Count, _from_reference(" 12\n"), 12),
        (Port, 0, 0),
        (Positive, 2, 2.0),
        (Positive, 0.5, 0.5),
        (Positive, _from_reference("1e3"), 1000.0),
        (Flag, True, True),
        (Flag, _from_reference("TRUE"), True),
        (Flag, _from_reference("off"), False),
        (FreeText, "8", "8"),
        (FreeText, _from_reference("8"), "8"),
        (TopicName, "orders.v1_eu-2", "orders.v1_eu-2"),
        (TopicName, "..." + "a" * 246, "..." + "a" * 246),
        (GroupName, "a group.of:mine", "a group.of:mine"),
        (ImportPath, "package.module:name", "package.module:name"),
        (ImportPath, "module:Class.create", "module:Class.create"),
        (Chroot, "", ""),
        (Chroot, "/headrace/eu", "/headrace/eu"),
        (KafkaServers, "a", ("a:9092",)),
        (KafkaServers, "a:1, b", ("a:1", "b:9092")),
        (KafkaServers, ["a:1", "10.0.0.1"], ("a:1", "10.0.0.1:9092")),
        (KafkaServers, _from_reference("a,b"), ("a:9092", "b:9092")),
        (ZooKeeperServers, "[::1]:2182", ("[::1]:2182",)),
        (ZooKeeperServers, "[fe80::1%eth0]", ("[fe80::1%eth0]:2181",)),
        (PartitionSet, [0], {0}),
        (PartitionSet, [7, "3-5"], {3, 4, 5, 7}),
        (PartitionSet, ["2-2", _from_reference("4")], {2, 4}),
        (PartitionSet, [MAX_PARTITION], {MAX_PARTITION}),
    ],
)
def test_values_are_read(annotation: Any, value: object, expected: object) -> None:
    """A value that fits its kind is read as what the model holds, in a plain type."""
    result = _read(annotation, value)
    assert result == expected
    assert not isinstance(result, Expanded)


@pytest.mark.parametrize(
    ("annotation", "value", "sentence"),
    [
        (Count, 0, "is not a whole number from 1 to 1000000000"),
        (Count, "1", "is not a whole number from 1 to 1000000000"),
        (Count, 1.0, "is not a whole number from 1 to 1000000000"),
        (Count, True, "is not a whole number from 1 to 1000000000"),
        (Count, None, "is not a whole number from 1 to 1000000000"),
        (Count, _from_reference("1.5"), "is not a whole number from 1 to 1000000000"),
        (Count, _from_reference("9" * 5000), "is not a whole number from 1 to 1000000000"),
        (Port, 65536, "is not a whole number from 0 to 65535"),
        (Positive, 0, "is not a number greater than 0"),
        (Positive, True, "is not a number greater than 0"),
        (Positive, "1", "is not a number greater than 0"),
        (Positive, 10**400, "is not a number greater than 0"),
        (Positive, float("inf"), "is not a number greater than 0"),
        (Positive, float("nan"), "is not a number greater than 0"),
        (Positive, _from_reference("much"), "is not a number greater than 0"),
        (Flag, "true", "is not true or false"),
        (Flag, 1, "is not true or false"),
        (Flag, _from_reference("1"), "is not true or false"),
        (FreeText, 8, "is not text; put it in quotes"),
        (FreeText, True, "is not text; put it in quotes"),
        (FreeText, " ", "is not text"),
        (FreeText, None, "is not text"),
        (TopicName, ".", "is not a topic name"),
        (TopicName, "..", "is not a topic name"),
        (TopicName, "", "is not a topic name"),
        (TopicName, "a" * 250, "is not a topic name"),
        (TopicName, "^orders.*", "is not a topic name"),
        (TopicName, "topic\n", "is not a topic name"),
        (GroupName, "a/b", "is not a group name"),
        (GroupName, " a", "is not a group name"),
        (GroupName, "a\n", "is not a group name"),
        (GroupName, "a\x00b", "is not a group name"),
        (GroupName, "..", "is not a group name"),
        (GroupName, "a\u202eb", "is not a group name"),
        (GroupName, "a\u2066b", "is not a group name"),
        (GroupName, "a\u200bb", "is not a group name"),
        (ImportPath, "package.module", "is not an import path such as package.module:name"),
        (ImportPath, "package.module:", "is not an import path such as package.module:name"),
        (ImportPath, "package/module.py:f", "is not an import path such as package.module:name"),
        (ImportPath, "a:b:c", "is not an import path such as package.module:name"),
        (ImportPath, "class:def", "is not an import path such as package.module:name"),
        (ImportPath, "a.import.b:c", "is not an import path such as package.module:name"),
        (ImportPath, "a:b.None", "is not an import path such as package.module:name"),
        (ImportPath, "1a:b", "is not an import path such as package.module:name"),
        (Chroot, "headrace", 'is not a path such as /headrace, or "" for the root'),
        (Chroot, "/", 'is not a path such as /headrace, or "" for the root'),
        (Chroot, "/a/", 'is not a path such as /headrace, or "" for the root'),
        (Chroot, "/a//b", 'is not a path such as /headrace, or "" for the root'),
        (Chroot, "/a/../b", 'is not a path such as /headrace, or "" for the root'),
        (KafkaServers, "a:0", "has a port that is not from 1 to 65535"),
        (KafkaServers, "a:65536", "has a port that is not from 1 to 65535"),
        (KafkaServers, "SSL://a:9092", "has a protocol; name host and port only"),
        (KafkaServers, "a:9092:1", "is not a server as host:port"),
        (KafkaServers, "a,,b", "is not a server as host:port"),
        (KafkaServers, "", "is not a server as host:port"),
        (KafkaServers, [9092], "is not a server as host:port"),
        (ZooKeeperServers, "::1", "is not a server as host:port"),
        (ZooKeeperServers, "a:2181/chroot", "(ZooKeeper's path goes into chroot)"),
        (PartitionSet, [], "is not a list of partition numbers and ranges"),
        (PartitionSet, 3, "is not a list of partition numbers and ranges"),
        (PartitionSet, "0-3", "is not a list of partition numbers and ranges"),
        (PartitionSet, [0, "0"], "[1] '0' is not a partition number or a range"),
        (PartitionSet, [True], "[0] true is not a partition number or a range"),
        (PartitionSet, ["a"], "[0] 'a' is not a partition number or a range"),
        (PartitionSet, [-1], "[0] -1 is not within partitions 0 to 99999"),
        (PartitionSet, ["0-100000"], "[0] '0-100000' is not within partitions 0 to 99999"),
        (PartitionSet, ["5-3"], "[0] '5-3' runs backwards"),
        (PartitionSet, ["1-3", "3-5", 3], "[1] '3-5' names partition 3 again"),
        (PartitionSet, [_from_reference("x")], "[0] ${X} expands to something that is not a"),
    ],
)
def test_values_that_do_not_fit_are_refused(annotation: Any, value: object, sentence: str) -> None:
    """A value that does not fit its kind is refused, and nothing is converted silently."""
    with pytest.raises(ValidationError) as caught:
        _read(annotation, value)
    assert any(sentence in detail["msg"] for detail in caught.value.errors())


@given(st.frozensets(st.integers(min_value=0, max_value=MAX_PARTITION), min_size=1, max_size=50))
def test_partitions_survive_writing_and_reading(numbers: frozenset[int]) -> None:
    """A set of partitions is read as it was written."""
    kind = PartitionNumbers()
    assert kind.read(kind.write(numbers)) == numbers


def test_partitions_are_written_as_ranges() -> None:
    """Neighbouring partitions are written as one range."""
    assert PartitionNumbers().write(frozenset({0, 3, 4, 5, 9})) == [0, "3-5", 9]
