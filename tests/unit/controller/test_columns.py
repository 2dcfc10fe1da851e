"""Which channels get their records in columns, and what becomes of those that cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import cimpl
from structlog.testing import capture_logs

from headrace.controller.controller import columns_of
from headrace.kafka.columnar import library
from headrace.kafka.errors import LibraryMissingError
from headrace.processors import BatchProcessor
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.processors.simple import SimpleKafkaProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    """Forget the library that was loaded, before and after."""
    library.load.cache_clear()
    yield
    library.load.cache_clear()


def test_processors_that_work_on_tables_want_columns() -> None:
    """Micro-batches are made of columns; a function of a user's own gets records as before."""
    assert MicroBatchProcessor.in_columns
    assert not SimpleKafkaProcessor.in_columns
    assert not BatchProcessor.in_columns


def test_without_the_library_there_are_no_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part in C that was not compiled is a line in the log, which says why, and no failure."""
    monkeypatch.setattr(library, "PATH", tmp_path / "missing.so")
    with capture_logs() as lines:
        assert columns_of("flights", "group", {}, 1 << 20) is None
    # what is captured is what every thread says
    (line,) = [line for line in lines if line.get("channel") == "flights"]
    assert line["event"] == "columnar_fetch_unavailable"
    assert "not built" in line["reason"]


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that was not compiled anew with the code that calls it is not used."""
    if not library.PATH.exists():
        pytest.skip("the part in C was not compiled")
    monkeypatch.setattr(library, "REVISION", library.REVISION + 1)
    with pytest.raises(LibraryMissingError, match="another version"):
        library.load()


def test_a_client_without_librdkafka_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose librdkafka cannot be found leads to no columns, and not to another library."""
    if not library.PATH.exists():
        pytest.skip("the part in C was not compiled")
    monkeypatch.setattr(cimpl, "__file__", str(tmp_path / "cimpl.so"))
    with pytest.raises(LibraryMissingError, match="is not loaded"):
        library.load()
