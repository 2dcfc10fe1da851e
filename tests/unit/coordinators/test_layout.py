from __future__ import annotations

import json
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinators.errors import BadDocumentError, ForeignVersionError
from headrace.coordinators.member_info import AssignmentMode, MemberInfo
from headrace.coordinators.znodes import (
    EpochDocument,
    GroupPaths,
    MemberDocument,
    OffsetDocument,
    OwnerDocument,
    decode_name,
)
from headrace.core.errors import ConfigError
from headrace.core.records import TopicPartition
from tests.unit.strategies import CHARACTERS

DOCUMENTS = (
    MemberDocument(
        MemberInfo(
            topics=frozenset({"a.b", "c"}),
            mode=AssignmentMode.STATIC,
            weight=3,
            partitions_per_topic=2,
            lists=MappingProxyType({"a.b": (1, 2)}),
            draining=True,
            cooldown=frozenset({TopicPartition("a.b", 1), TopicPartition("c", 0)}),
        ),
        host="h",
        pid=7,
        since=12.5,
        software="0.1.0",
    ),
    MemberDocument(MemberInfo(frozenset({"a"})), "h", 7, 12.5, "0.1.0", "https://h:9465"),
    OwnerDocument(member="m", member_epoch=77, epoch=3, host="h", since=1.5),
    EpochDocument(epoch=3, member="m", member_epoch=77, transactional_id="tx", clean_end=True),
    EpochDocument(3, "m", 77, transactional_id="c", clean_end=False, unfenced=("a", "b")),
    EpochDocument(epoch=0, member="m", member_epoch=77, transactional_id=None, clean_end=False),
    OffsetDocument(offset=12, epoch=3, member="m", since=1.5),
    OffsetDocument(offset=12, epoch=3, member="m", since=1.5, topic_id="t", leader_epoch=4),
)


def test_paths_are_those_of_the_documented_layout() -> None:
    """The nodes are where other versions of Headrace look for them."""
    paths = GroupPaths("g")
    partition = TopicPartition("t.with.dots", 3)
    assert paths.member("host-1") == "/consumers/g/ids/host-1"
    assert paths.owner(partition) == "/consumers/g/owners/t.with.dots/3"
    assert paths.epoch(partition) == "/consumers/g/epochs/t.with.dots/3"
    assert paths.offset(partition) == "/consumers/g/offsets/t.with.dots/3"


@given(st.text(CHARACTERS, min_size=1))
def test_any_name_makes_one_part_of_a_path_and_comes_back(name: str) -> None:
    """Names that ZooKeeper could not take are encoded, and decoded again."""
    name = name.encode(errors="replace").decode()
    part = GroupPaths("g").member(name).removeprefix("/consumers/g/ids/")
    assert "/" not in part
    assert part not in {"", ".", ".."}
    assert part.isascii()
    assert decode_name(part) == name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: type(d).__name__)
def test_documents_come_back_as_they_were_written(document: MemberDocument) -> None:
    """Encoding and decoding are inverse, and every document carries the format version."""
    assert type(document).decode("/n", document.encode()) == document
    assert json.loads(document.encode())["version"] == 1


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: type(d).__name__)
def test_unknown_keys_are_skipped_and_missing_ones_are_not(document: MemberDocument) -> None:
    """A key may be added within a format version, but none may be missing."""
    fields = json.loads(document.encode())
    more = json.dumps({**fields, "colour": "blue"}).encode()
    assert type(document).decode("/n", more) == document
    added = {"transactional_id", "unfenced", "avoiding", "topic_id", "leader_epoch", "admin"}
    for name in fields.keys() - added:
        less = {key: value for key, value in fields.items() if key != name}
        with pytest.raises(BadDocumentError, match=f"{name} is missing"):
            type(document).decode("/n", json.dumps(less).encode())


def test_an_earlier_version_s_topic_is_known_by_its_id() -> None:
    """It was written in librdkafka's alphabet, and is written in Kafka's from now on."""
    fields = {"version": 1, "offset": 12, "epoch": 3, "member": "m", "since": 1.5}
    data = json.dumps({**fields, "topic_id": "+0vHkN/QtyVv6cS6PqPz+w"}).encode()
    document = OffsetDocument.decode("/n", data)
    assert document.topic_id == "-0vHkN_QtyVv6cS6PqPz-w"
    assert json.loads(document.encode()) == {**fields, "topic_uuid": document.topic_id}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: type(d).__name__)
def test_a_later_format_version_is_told_apart(document: MemberDocument) -> None:
    """A higher version raises its own error, which names the version found."""
    later = json.dumps({"version": 2, "new": "shape"}).encode()
    with pytest.raises(ForeignVersionError, match="format version 2"):
        type(document).decode("/n", later)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"12", b"[]", b"{}", b'{"version":"1"}', b'{"version":true}', b'{"version":0}'],
)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: type(d).__name__)
def test_a_node_without_a_document_is_refused(document: MemberDocument, data: bytes) -> None:
    """The error names the node."""
    with pytest.raises(BadDocumentError, match="ZooKeeper node /n cannot be used"):
        type(document).decode("/n", data)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "other"),
        ("mode", 1),
        ("topics", "a.b"),
        ("topics", [1]),
        ("weight", 0),
        ("weight", True),
        ("partitions_per_topic", -1),
        ("lists", {"t": [-1]}),
        ("lists", {"t": ["1"]}),
        ("lists", {"t": 1}),
        ("draining", 1),
        ("since", "now"),
    ],
)
def test_wrong_values_in_a_member_node_are_refused(name: str, value: object) -> None:
    """Types and bounds are checked strictly."""
    fields = {**json.loads(DOCUMENTS[0].encode()), name: value}
    with pytest.raises(BadDocumentError):
        MemberDocument.decode("/n", json.dumps(fields).encode())


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(CHARACTERS),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(CHARACTERS), inner),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode())
)
def test_no_content_makes_anything_but_a_typed_error(data: bytes) -> None:
    """Any content of a node gives a document or a BadDocumentError."""
    for document in DOCUMENTS:
        with pytest.raises(BadDocumentError):
            type(document).decode("/n", data)


def test_settings_that_no_member_could_read_are_not_published() -> None:
    """A weight below one and a negative number are refused at once."""
    with pytest.raises(ConfigError, match="weight: 0"):
        MemberInfo(frozenset(), weight=0)
    with pytest.raises(ConfigError, match="partitions_per_topic: -1"):
        MemberInfo(frozenset(), AssignmentMode.FIXED_COUNT, partitions_per_topic=-1)
