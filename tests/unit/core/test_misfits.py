"""Reasons of a value that cannot be decoded."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UndecodableRecordError
from headrace.core.letter_headers import code_of
from headrace.core.misfits import MISFIT, ExpectedObject, custom_reason
from headrace.core.tables import Decode, Decoding, Timestamps
from headrace.extensions.arrow.decode import ArrowDecoder, schema_of
from headrace.testing import records_table

SCHEMA = (
    "n INT, b BOOLEAN, d DOUBLE, s STRING, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "c DECIMAL(5,2), a ARRAY<INT>, o STRUCT<x: TINYINT>"
)
EXPECTED = ExpectedObject(pa.struct(list(schema_of(Decoding.JSON, SCHEMA))))

SAID = {
    b"": "[EMPTY] the value is empty; a JSON object is expected",
    b" \n ": "[EMPTY] the value is 3 bytes of white space; a JSON object is expected",
    b"rubbish": '[NOT_JSON] at byte 0: value is expected, found "rubbish"',
    b'{"n": 1': "[NOT_JSON] at byte 7: ',' delimiter is expected, found the end",
    '{"s": "ü" 1}'.encode(): "[NOT_JSON] at byte 11: ',' delimiter is expected, found \"1}\"",
    b'{"n": 1} {}': '[NOT_JSON] at byte 9: extra data, found "{}"',
    b"[" * 100_000: "[NOT_JSON] the value is nested too deeply to be read",
    b'\xef\xbb\xbf{"n": 1}': (
        "[NOT_JSON] at byte 0: unexpected UTF-8 BOM (decode using utf-8-sig), "
        'found "\ufeff{\\"n\\": 1}"'
    ),
    b"null": "[NOT_OBJECT] a JSON object is expected, found null",
    b"[1]": "[NOT_OBJECT] a JSON object is expected, found a list",
    b"17": "[NOT_OBJECT] a JSON object is expected, found the number 17",
    b'{"n": "1"}': '[TYPE] field n: INT is expected, found the text "1"',
    b'{"n": 1.5}': "[TYPE] field n: INT is expected, found the number 1.5",
    b'{"n": true}': "[TYPE] field n: INT is expected, found true",
    b'{"n": 3000000000}': "[RANGE] field n: INT is expected, found the number 3000000000",
    b'{"n": ' + b"9" * 5000 + b"}": (
        f"[RANGE] field n: INT is expected, found the number {'9' * 39}…"
    ),
    b'{"b": "true"}': '[TYPE] field b: BOOLEAN is expected, found the text "true"',
    b'{"d": ""}': "[TYPE] field d: DOUBLE is expected, found an empty text",
    b'{"d": 1e400}': "[RANGE] field d: DOUBLE is expected, found the number 1e400",
    b'{"s": 5}': "[TYPE] field s: STRING is expected, found the number 5",
    b'{"day": "tomorrow"}': '[TYPE] field day: DATE is expected, found the text "tomorrow"',
    b'{"at": 5}': "[TYPE] field at: TIMESTAMP is expected, found the number 5",
    b'{"c": 1000}': "[RANGE] field c: DECIMAL(5,2) is expected, found the number 1000",
    b'{"a": {}}': "[TYPE] field a: a list is expected, found an object",
    b'{"a": [1, null, "x"]}': '[TYPE] field a[2]: INT is expected, found the text "x"',
    b'{"o": {"x": 128}}': "[RANGE] field o.x: TINYINT is expected, found the number 128",
    b'{"s": "\xff"}': "[NOT_UTF8] at byte 7: 0xff is no UTF-8",
    b'{"n": 1, "n": 2}': "[TWICE] field n is there twice",
    b'{"o": {"x": 1, "x": 2}}': "[TWICE] field x is there twice",
    b'{"more": 1e400}': "[RANGE] field more: a double is expected, found the number 1e400",
    b'{"more": "\\ud800"}': "[NOT_UTF8] field more: half of a surrogate pair is no UTF-8",
    b'{"day": "2026-02-30"}': '[TYPE] field day: DATE is expected, found the text "2026-02-30"',
    b'{"day": "2026-W13-1"}': '[TYPE] field day: DATE is expected, found the text "2026-W13-1"',
    b'{"day": "20260329"}': '[TYPE] field day: DATE is expected, found the text "20260329"',
    b'{"at": "20260329T100000Z"}': (
        '[TYPE] field at: TIMESTAMP is expected, found the text "20260329T100000Z"'
    ),
    b'{"at": " 2026-03"}': '[TYPE] field at: TIMESTAMP is expected, found the text " 2026-03"',
    b'{"at": "9999-12-31T23:59:59-01:00"}': (
        '[RANGE] field at: TIMESTAMP is expected, found the text "9999-12-31T23:59:59-01:00"'
    ),
    b'{"at": "2026-03-29T10:00:00.1234567Z"}': (
        "[DIGITS] field at: TIMESTAMP with at most 6 digits of a second is expected, found the "
        'text "2026-03-29T10:00:00.1234567Z"'
    ),
    b'{"local": "2026-03-29T10:00:00Z"}': (
        '[TYPE] field local: TIMESTAMP_NTZ is expected, found the text "2026-03-29T10:00:00Z"'
    ),
    b'{"c": "19,99"}': '[TYPE] field c: DECIMAL(5,2) is expected, found the text "19,99"',
    b'{"c": "1000"}': '[RANGE] field c: DECIMAL(5,2) is expected, found the text "1000"',
    b'{"c": 1.255}': (
        "[DIGITS] field c: DECIMAL(5,2) without more digits is expected, found the number 1.255"
    ),
    b'{"c": "1.5", "at": "2026-03-29T10:00:00Z", "day": "2026-03-29", "o": {"x": 128}}': (
        "[RANGE] field o.x: TINYINT is expected, found the number 128"
    ),
}

#: What is said beside that, where the part in C was compiled.
AT_BYTE = re.compile(r", at byte [0-9]+(?=; fix)")

#: Of a schema whose moments are numbers.
OF_SECONDS = {
    "1774778400000": "[RANGE] field at: TIMESTAMP as a number is expected, found the number {}",
    '"1774778400000"': "[RANGE] field at: TIMESTAMP as a number is expected, found the text {}",
    '"2026-03-29"': "[TYPE] field at: TIMESTAMP as a number is expected, found the text {}",
    '"1774778400", "n": "x"': '[TYPE] field n: INT is expected, found the text "x"',
}


@pytest.mark.parametrize(("value", "said"), SAID.items(), ids=lambda each: repr(each)[:30])
def test_a_reason_names_field_expected_and_found(value: bytes, said: str) -> None:
    """Or the byte, or that it is empty; the arrow decoder refuses the value, and says the same."""
    with pytest.raises(UndecodableRecordError) as raised:
        ArrowDecoder(Decode(Decoding.JSON, SCHEMA)).apply(records_table([value]))

    assert EXPECTED.why_undecodable(value) == f"{MISFIT}: {said}"
    reason = AT_BYTE.sub("", raised.value.reason)
    assert reason.startswith(f"{MISFIT}: {said}; fix the schema or the producer")
    assert code_of(str(raised.value)) == said[1 : said.index("]")]


@pytest.mark.parametrize(("text", "said"), OF_SECONDS.items())
def test_a_moment_of_another_unit_is_named(text: str, said: str) -> None:
    """A number of another unit is out of range; one that is right is not blamed for others."""
    decode = Decode(Decoding.JSON, "at TIMESTAMP, n INT", timestamps=Timestamps.SECONDS)
    value = f'{{"at": {text}}}'.encode()
    with pytest.raises(UndecodableRecordError) as raised:
        ArrowDecoder(decode).apply(records_table([value]))
    reason = AT_BYTE.sub("", raised.value.reason)
    assert reason.startswith(f"{MISFIT}: {said.format(text)}; fix the schema")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_have_one_reason(value: bytes) -> None:
    """Any value has a bounded sentence with a code, and never an error."""
    said = EXPECTED.why_undecodable(value)

    assert code_of(said) is not None
    assert len(said) < 200


@given(
    st.dictionaries(
        st.sampled_from(["n", "b", "d", "s", "day", "at", "local", "c", "a", "o", "more"]),
        st.text("0123456789+-.eE:TZ", max_size=30)
        | st.sampled_from(["1e99999999", "-1e-99999999999", "9" * 5000, "1" + "0" * 200])
        | st.floats()
        | st.integers()
        | st.none(),
    ),
    st.sampled_from(Timestamps),
)
def test_any_object_has_one_reason(members: dict[str, Any], timestamps: Timestamps) -> None:
    """Each object has a code, with any texts and numbers in its fields."""
    expected = ExpectedObject(pa.struct(list(schema_of(Decoding.JSON, SCHEMA))), timestamps)
    bare = ",".join(f'"{name}":{found}' for name, found in members.items())
    for text in (json.dumps(members), f"{{{bare}}}"):
        assert code_of(expected.why_undecodable(text.encode())) is not None


def test_a_decoders_own_words_have_a_code() -> None:
    """So that they are grouped as well."""
    assert code_of(custom_reason("no header")) == "DECODER"
    assert code_of("ValueError: x") is None
    assert code_of(None) is None
