from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.config.models.processor import MicroBatchConfig
from headrace.config.show import show
from headrace.controller.preflight import preflight
from tests.unit.config.support import CHANNELS, loaded, refused

if TYPE_CHECKING:
    from pathlib import Path

URL = "registry: {url: 'http://r:8081'}\n"
PROCESSOR = "processor: {type: arrow, reducer: 'a:b', decode: avro"
SUBJECT = "reader_schema: {subject: orders-value}"


def avro(rest: str) -> str:
    """Return channels of which the one has Avro; ``rest`` follows in its processor."""
    return f"channels: {{c: {{topics: t, group: g, sink: noop, {PROCESSOR}, {rest}}}}}}}\n"


@pytest.mark.parametrize(
    ("registry", "problem"),
    [
        ("{}", "registry.url: is missing"),
        ("{url: 'r:8081'}", "registry.url[0]: 'r:8081' is not an address such as https://"),
        ("{url: 'http://u:p@r'}", "is not an address such as https://"),
        ("{url: []}", "registry.url: has no address; give one"),
        ("{url: 'http://r', username: u}", "registry.password: is missing, which username needs"),
        ("{url: 'http://r', password: p}", "registry.username: is missing, which password is of"),
        (
            "{url: 'http://r', username: u, password: p, token: t}",
            "registry.token: is a login, and so is username; leave one of them out",
        ),
        (
            "{url: 'http://r', token: t, oauth: {token_file: f}}",
            "registry.oauth: is a login, and so is token; leave one of them out",
        ),
        ("{url: 'http://r', oauth: {}}", "registry.oauth: says no token; give token_url, or"),
        (
            "{url: 'http://r', oauth: {token_url: 'http://i/t', client_id: a}}",
            "registry.oauth.client_secret: is missing, which token_url asks for",
        ),
        (
            "{url: 'http://r', headers: {Authorization: x}}",
            "registry.headers.Authorization: is Headrace's own; leave it out",
        ),
        ("{url: 'http://r', headers: {'a b': x}}", "is no name of a header of HTTP"),
        ("{url: 'http://r', tls: {}}", "registry.tls: is for https, and url is http"),
    ],
)
def test_mistakes_in_the_registry_are_named(tmp_path: Path, registry: str, problem: str) -> None:
    """A section that cannot be a registry says which key is wrong, and what to write."""
    (told,) = refused(tmp_path, f"registry: {registry}\n" + CHANNELS)
    assert problem in told.replace(" (line 1)", "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (avro(SUBJECT), "decode: is avro, whose values name their schemas by ids of a registry"),
        (URL + avro("timestamps: iso"), "timestamps: exists only with decode: json"),
        (URL + avro(f"schema: a INT, {SUBJECT}"), "schema: exists only with decode: json"),
        (URL + avro("max_rate: 1"), "reader_schema: is missing; decode: avro needs the schema"),
        (URL + avro("reader_schema: {}"), "reader_schema.subject: is missing; give subject, id"),
        (URL + avro("reader_schema: {id: 0}"), "reader_schema.id: 0 is not a whole number"),
        (URL + avro("reader_schema: {id: 1, file: f}"), "file: is given beside id; give one"),
        (URL + avro("reader_schema: {id: 1, version: 2}"), "version: is of a subject; give"),
        (
            URL + avro("reader_schema: {subject: s, version: newest}"),
            "version: 'newest' is not latest, or the number of a version",
        ),
    ],
)
def test_mistakes_of_avro_are_named(tmp_path: Path, text: str, problem: str) -> None:
    """A channel that cannot decode Avro says which key is wrong, and what to write."""
    told = refused(tmp_path, text)
    assert any(problem in each.replace(" (line 1)", "").replace(" (line 2)", "") for each in told)


@pytest.mark.parametrize(
    ("processor", "problem"),
    [
        ("decode: protobuf", "reader_schema: is missing; decode: protobuf needs the schema"),
        (f"decode: protobuf, schema: a INT, {SUBJECT}", "schema: exists only with decode: json"),
        (
            "decode: avro, reader_schema: {subject: s, message: M}",
            "reader_schema.message: is M, and exists only with decode: protobuf; leave it out",
        ),
        ("decode: json_schema", "schema: is missing; decode: json_schema needs the columns"),
        (f"decode: json_schema, schema: a INT, {SUBJECT}", "reader_schema: exists only with"),
        (
            "decode: protobuf, timestamps: millis, reader_schema: {subject: s}",
            "timestamps: exists only with decode: json",
        ),
    ],
)
def test_mistakes_of_protobuf_and_json_schema_are_named(
    tmp_path: Path, processor: str, problem: str
) -> None:
    """A channel that cannot decode them says which key is wrong, and what to write."""
    told = refused(tmp_path, URL + avro("max_rate: 1").replace("decode: avro", processor))
    assert any(problem in each.replace(" (line 2)", "") for each in told)


@pytest.mark.parametrize("rest", ["protobuf, reader_schema: {id: 1}", "json_schema, schema: a INT"])
def test_both_take_a_registry(tmp_path: Path, rest: str) -> None:
    """Without the section registry they are refused."""
    told = refused(tmp_path, avro("max_rate: 1").replace("decode: avro", f"decode: {rest}"))
    assert any("whose values name their schemas by ids of a registry" in each for each in told)


def keyed(rest: str, kind: str = "keyed, reducer: 'a:b'") -> str:
    """Return channels of which the one is by key; ``rest`` follows in its processor."""
    out = "sink: {type: kafka, topic: out}"
    processor = f"processor: {{type: {kind}, engine: arrow, {rest}}}"
    return f"channels: {{c: {{topics: t, group: g, {processor}, {out}}}}}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            keyed("value: avro, reader_schema: {id: 1}"),
            "processor.value: is avro, whose values name their schemas by ids of a registry",
        ),
        (
            keyed("value: json_schema, key: value.id", "rekey"),
            "processor.value: is json_schema, whose values name their schemas by ids",
        ),
        (
            URL + keyed("value: protobuf"),
            "reader_schema: is missing; value: protobuf needs the schema to read by",
        ),
        (
            URL + keyed("value: avro, key: value.id", "rekey"),
            "reader_schema: is missing; value: avro needs the schema to read by",
        ),
        (URL + keyed("value: json, reader_schema: {id: 1}"), "reader_schema: exists only with"),
        (
            URL + keyed("value: avro, reader_schema: {id: 1}, time: value.at"),
            "time: is value.at, a field of the value, and value is avro; write value: json",
        ),
    ],
)
def test_mistakes_of_channels_by_key_are_named(tmp_path: Path, text: str, problem: str) -> None:
    """A channel that cannot read such values says which key is wrong, and what to write."""
    told = refused(tmp_path, text)
    assert any(problem in each.replace(" (line 1)", "").replace(" (line 2)", "") for each in told)


def test_a_channel_that_rekeys_reads_by_the_same_schema(tmp_path: Path) -> None:
    """Both channels that one becomes have the form of values, and the reader's schema."""
    text = URL + keyed("value: avro, reader_schema: {id: 1}, key: value.id")
    chosen = [each.processor for each in loaded(tmp_path, text).channels.values()]
    assert [each.framed for each in chosen] == [("value", "avro")] * 2
    assert [each.reads_by and each.reads_by.id for each in chosen] == [1, 1]


def test_a_file_that_has_no_message_is_named_before_the_start(tmp_path: Path) -> None:
    """A file that is no set of descriptors is refused by the check."""
    text = avro("reader_schema: {file: order.desc}").replace("decode: avro", "decode: protobuf")
    config = loaded(tmp_path, URL + text)
    (tmp_path / "order.desc").write_text("message Order {}")
    ((place, told),) = preflight(config)
    assert place == ("channels", "c", "processor", "reader_schema", "file")
    assert "it is no set of descriptors; write one with protoc" in told


def test_no_printed_configuration_has_the_registrys_secrets(tmp_path: Path) -> None:
    """The password and the token of the registry are masked, and the url is not."""
    text = "registry: {url: ['https://r', 'https://s'], username: key, password: hunter2}\n"
    config = loaded(tmp_path, text + CHANNELS)
    assert config.registry is not None
    assert config.registry.url == ("https://r", "https://s")
    assert "hunter2" not in show(config) + repr(config)


def test_a_reader_schema_has_its_version(tmp_path: Path) -> None:
    """A version is latest, or a number, also one that a reference brought as text."""
    text = URL + avro("reader_schema: {subject: s, version: '${V}'}")
    config = loaded(tmp_path, text, {"V": "3"})
    chosen = config.channels["c"].processor
    assert isinstance(chosen, MicroBatchConfig)
    assert chosen.reader_schema is not None
    assert chosen.reader_schema.version == 3


def test_a_file_that_is_no_readers_schema_is_named_before_the_start(tmp_path: Path) -> None:
    """A file that is missing, or has what columns cannot hold, is refused by the check."""
    config = loaded(tmp_path, URL + avro("reader_schema: {file: order.avsc}"))
    file = tmp_path / "order.avsc"
    ((place, told),) = preflight(config)
    assert place == ("channels", "c", "processor", "reader_schema", "file")
    assert f"{file} cannot be read" in told
    field: dict[str, object] = {"name": "a", "type": ["int", "string"]}
    file.write_text(json.dumps({"type": "record", "name": "Order", "fields": [field]}))
    ((_, told),) = preflight(config)
    assert "Order.a is a union of int and string, which no column holds" in told
    field["type"] = {"type": "array", "items": "null"}
    file.write_text(json.dumps({"type": "record", "name": "Order", "fields": [field]}))
    ((_, told),) = preflight(config)
    assert "the items of a take no byte, which is not decoded" in told
    field["type"] = "int"
    file.write_text(json.dumps({"type": "record", "name": "Order", "fields": [field]}))
    assert not list(preflight(config))
