from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from headrace.config import KafkaConfig, SinkSite
from headrace.core.errors import StartError
from headrace.extensions.sql.section import SqlSinkConfig
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.contract import TransactionalOffsets
from tests.unit.extensions.sql.sql_tables import CREATE, Base, share, staged

if TYPE_CHECKING:
    from pathlib import Path


SITE = SinkSite("m1", "group", KafkaConfig())


def _section(path: Path) -> SqlSinkConfig:
    fields = {"url": Base(path).url, "table": "t", "mode": "upsert", "key": ["id"]}
    return SqlSinkConfig.model_validate(fields | {"offsets_table": "kept"})


def test_the_sink_is_built_as_configured(tmp_path: Path) -> None:
    """Mode, key, offsets table and the member's name are those of the configuration."""
    base = Base(tmp_path / "base.db")
    base.run(CREATE, "INSERT INTO t VALUES (1, 'a')")
    sink = _section(base.path).build(SITE)
    assert isinstance(sink, SqlSink)
    assert isinstance(sink, TransactionalOffsets)
    sink.open()

    sink.commit(staged(sink, [{"id": 1, "name": "b"}]), [share(0, 0, 1)])
    sink.close()

    assert base.rows() == [(1, "b")]
    assert base.run("SELECT member, next_offset FROM kept") == [("m1", 1)]


def test_the_extra_is_asked_for_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without SQLAlchemy the error says what to install."""
    monkeypatch.setitem(sys.modules, "headrace.extensions.sql.sink", None)
    with pytest.raises(StartError, match=r"pip install 'headrace\[sql\]'"):
        _section(tmp_path / "base.db").build(SITE)
