from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle as pickler

from headrace.core.decoders import CustomDecoder, decoded_rows
from headrace.core.errors import ImportPathError, RetryableError
from tests.decoders import install_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Spark's own, which has no types.
cloudpickle: Any = pickler

KIND = pa.struct([("id", pa.int32()), ("name", pa.string())])


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package with a decoder on the import path, and the file that says what was made."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield install_pairs(tmp_path / "site")
    sys.modules.pop("acme_pairs", None)


def pairs(made: Path, separator: str = ";") -> CustomDecoder:
    """Return the package's decoder, loaded."""
    decoder = CustomDecoder("acme_pairs:Pairs", {"separator": separator, "made": str(made)})
    decoder.load()
    return decoder


def test_a_decoder_is_made_once_in_a_process_and_again_for_a_channel_that_starts_again(
    made: Path,
) -> None:
    """Copies, as Spark's workers get one for each task, share what is made; another has its own."""
    decoder = pairs(made)
    sent = cloudpickle.dumps(decoder)
    for copy in (decoder, cloudpickle.loads(sent), cloudpickle.loads(sent)):
        assert copy(b"id=1;name=a") == {"id": 1, "name": "a"}
    assert len(made.read_text().split()) == 1
    assert pairs(made, ",")(b"id=2,name=b") == {"id": 2, "name": "b"}
    assert len(made.read_text().split()) == 2


def test_an_exception_of_a_decoder_is_an_error_of_the_value(made: Path) -> None:
    """An error that blames no record passes unchanged."""
    decoder = pairs(made)
    with pytest.raises(ValueError, match=r"^acme_pairs:Pairs raised ValueError: "):
        decoder(b"rubbish")
    with pytest.raises(RetryableError, match="the registry does not answer"):
        decoder(b"down")


@pytest.mark.parametrize(
    ("path", "options", "told"),
    [
        ("acme_pairs:Nothing", {}, "has no 'Nothing'"),
        ("acme_pairs:Pairs", {"seperator": ";"}, "the options are seperator: missing a required"),
        ("acme_pairs:Pairs", {"separator": ";", "made": "/no/folder"}, "failed: FileNotFound"),
        ("acme_pairs:decode", {"value": b"id=1", "separator": ";"}, "returned a dict; it must"),
    ],
)
@pytest.mark.usefixtures("made")
def test_a_decoder_that_cannot_be_made_is_refused(
    path: str, options: dict[str, object], told: str
) -> None:
    """At the start, with the reason."""
    with pytest.raises(ImportPathError, match=told):
        CustomDecoder(path, options).load()


def test_no_record_is_blamed_where_a_process_cannot_make_its_decoder(
    made: Path, tmp_path: Path
) -> None:
    """A worker whose machine lacks what the factory needs says so, and the batch comes again."""
    sent = cloudpickle.dumps(pairs(tmp_path / "site" / "gone"))
    copy = cloudpickle.loads(sent)
    copy._token, copy._options["made"] = "of another process", "/no/folder"
    with pytest.raises(RetryableError, match="no decoder can be made here: 'acme_pairs:Pairs'"):
        copy(b"id=1")
    assert not made.exists()


def test_values_become_rows_and_those_that_do_not_fit_are_named(made: Path) -> None:
    """A tombstone is a row of nulls; a field that is missing is null, one more is left out."""
    values = [b"id=1;name=a", None, b"name=b;more=1", b"rubbish", b"id=99999999999", b"id=2"]
    rows, bad = decoded_rows(pairs(made), pa.array(values, pa.binary()), KIND)
    assert rows.to_pylist() == [
        {"id": 1, "name": "a"},
        None,
        {"id": None, "name": "b"},
        None,
        None,
        {"id": 2, "name": None},
    ]
    assert list(bad) == [3, 4]
    assert bad[3].startswith("acme_pairs:Pairs raised ValueError")
    assert bad[4].startswith("what it was decoded to does not fit the schema: ")


COLUMNS = """
import pyarrow as pa
from headrace import RetryableError


class Numbers:
    kind = pa.struct([("id", pa.int64()), ("more", pa.int32())])

    def columns(self, values):
        texts = values.to_pylist()
        if b"down" in texts:
            raise RetryableError("the registry does not answer")
        if b"broken" in texts:
            raise KeyError("broken")
        rows = [{"id": int(each)} if each and each.isdigit() else None for each in texts]
        bad = {at: "no digits" for at, each in enumerate(texts) if each and not each.isdigit()}
        return pa.array(rows[1:] if b"0" in texts else rows, self.kind), bad
"""


@pytest.fixture
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CustomDecoder]:
    """A decoder that makes columns, loaded."""
    (tmp_path / "acme_columns.py").write_text(COLUMNS)
    monkeypatch.syspath_prepend(str(tmp_path))
    decoder = CustomDecoder("acme_columns:Numbers")
    decoder.load()
    yield decoder
    sys.modules.pop("acme_columns", None)


def test_a_decoder_of_columns_gets_all_values_at_once(numbers: CustomDecoder) -> None:
    """Rows are cast to the schema's columns, and a row that does not fit is named."""
    values = pa.array([b"1", None, b"x", b"99999999999"], pa.binary())
    rows, bad = decoded_rows(numbers, values, KIND)
    assert rows.to_pylist() == [{"id": 1, "name": None}, None, None, None]
    assert rows.type == KIND
    assert bad[2] == "no digits"
    assert bad[3].startswith("what it was decoded to does not fit the schema: ")
    assert numbers.kind == pa.struct([("id", pa.int64()), ("more", pa.int32())])


def test_a_decoder_of_columns_can_be_called_with_one_value(numbers: CustomDecoder) -> None:
    """A keyed channel gets a mapping for each record, or the reason as an error."""
    assert numbers(b"7") == {"id": 7, "more": None}
    with pytest.raises(ValueError, match="no digits"):
        numbers(b"x")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"down", "the registry does not answer"),
        (b"broken", "acme_columns:Numbers raised KeyError"),
        (b"0", "made 0 rows of 1 values"),
    ],
)
def test_no_record_is_blamed_for_an_error_of_a_decoder_of_columns(
    numbers: CustomDecoder, value: bytes, told: str
) -> None:
    """The batch comes again, whatever the decoder raised, and where rows are missing."""
    with pytest.raises(RetryableError, match=told):
        decoded_rows(numbers, pa.array([value], pa.binary()), KIND)


def test_a_decoder_of_rows_has_to_return_a_mapping() -> None:
    """Anything else is the value's fault, and named."""
    rows, bad = decoded_rows(lambda value: value, pa.array([b"a"], pa.binary()), KIND)
    assert rows.to_pylist() == [None]
    assert bad == {0: "the decoder returned a bytes; it must return a mapping"}
