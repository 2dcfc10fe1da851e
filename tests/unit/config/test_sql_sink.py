from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.config.show import document, show
from headrace.extensions.sql.section import SqlSinkConfig
from tests.unit.config.support import CHANNELS, channel, loaded, refused

if TYPE_CHECKING:
    from pathlib import Path

URL = "postgresql+psycopg://u:hunter2@h/d?sslmode=require"
SINK = {"type": "sql", "url": URL, "table": "t"}
PORT = "has a port that is not a whole number from 0 to 65535"
SPARK = {"type": "spark", "reducer": "a:b"}


def _sink(**fields: Any) -> SqlSinkConfig:
    sink = channel(processor=SPARK, sink=SINK | fields).sink
    assert isinstance(sink, SqlSinkConfig)
    return sink


def test_no_printed_configuration_has_a_password() -> None:
    """The url's user and password are left out, and so is the password field."""
    for sink in (_sink(), _sink(url=URL.replace(":hunter2", ""), password="hunter3")):
        shown = [show(sink), str(document(sink)), repr(sink)]
        assert not [text for text in shown if "hunter" in text or "u:" in text or "u@" in text]
    assert _sink().url.get_secret_value() == URL


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///b.db", "sqlite:///{folder}/b.db"),
        ("sqlite+pysqlite:///x/b.db?timeout=5", "sqlite+pysqlite:///{folder}/x/b.db?timeout=5"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("sqlite:///file:b?uri=true", "sqlite:///file:b?uri=true"),
        ("sqlite://", "sqlite://"),
        ("mysql://h/d", "mysql://h/d"),
        ("mysql://u:p@[::1]:65535/d", "mysql://u:p@[::1]:65535/d"),
    ],
)
def test_a_file_of_sqlite_starts_from_the_folder_of_the_configuration(
    tmp_path: Path, url: str, expected: str
) -> None:
    """A relative file is meant as every other path; other URLs stay as they are."""
    text = CHANNELS.replace("noop", f"{{type: sql, url: '{url}', table: s.t}}")
    (one,) = loaded(tmp_path, text).channels.values()
    assert isinstance(one.sink, SqlSinkConfig)
    assert one.sink.url.get_secret_value() == expected.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("url: hunter2", "url: *** is not a URL such as postgresql+psycopg://user@host/database"),
        ("urll: 'b://u:hunter2@h'", "urll: is not a known key; did you mean url?"),
        ("url: ''", "url: *** is empty"),
        ("url: 'a://u:hunter2@h:1x/d'", f"url: *** {PORT}"),
        ("url: 'a://h:65536/d'", f"url: *** {PORT}"),
        ("url: 'a://[::1]:-1/d'", f"url: *** {PORT}"),
        (
            "url: 'a://u:hunter2@h/d', password: hunter3",
            "password: is given beside the one in the url; leave one of them out",
        ),
        ("url: 'a://h', table: a.b.c", "table: 'a.b.c' is not a table name, or schema.table"),
        (
            "url: 'a://h', key: [k]",
            "key: exists only with mode: upsert; write that, or leave the key out",
        ),
        (
            "url: 'sqlite:////a', mode: merge, key: [k]",
            ("merge: is missing; mode: merge takes sum, min, max or last for each other column"),
        ),
        (
            "url: 'sqlite:////a', mode: merge, merge: {n: sum}",
            "key: is missing; mode: merge takes the columns that make a row unique",
        ),
        (
            "url: 'sqlite:////a', mode: merge, key: [k], merge: {k: sum, n: sum}",
            "merge: names k, which is in key; leave it out of one of them",
        ),
        (
            "url: 'sqlite:////a', mode: upsert, key: [k], merge: {n: sum}",
            "merge: exists only with mode: merge; write that, or leave the key out",
        ),
        (
            "url: 'sqlite:////a', mode: merge, key: [k], merge: {n: sum}, repeated: last",
            "repeated: exists only with mode: upsert; write that, or leave the key out",
        ),
        (
            "url: 'mssql://h/d', mode: merge, key: [k], merge: {n: sum}",
            (
                "mode: is merge, which takes postgresql or sqlite or mariadb or mysql, and the url "
                "begins with mssql; use mode: append"
            ),
        ),
        (
            "url: 'sqlite:////a', mode: merge, key: [k], merge: {n: avg}",
            "n: 'avg' is not sum, min, max or last",
        ),
        (
            "url: 'sqlite:////a', mode: upsert",
            "key: is missing; mode: upsert takes the columns that make a row unique",
        ),
        (
            "url: 'mssql://u:hunter2@h/d', mode: upsert, key: [k]",
            (
                "mode: is upsert, which takes postgresql or sqlite or mariadb or mysql, and the "
                "url begins with mssql; use mode: append"
            ),
        ),
        (
            "url: 'a://h', offsets_table: t",
            "offsets_table: is the table that rows go to; name another one",
        ),
        (
            "url: 'a://h', origin: true, origins_table: headrace_offsets",
            "origins_table: is the table of the offsets; name another one",
        ),
        (
            "url: 'a://h', origins_table: o",
            "origins_table: exists only with origin: true; write that, or leave the key out",
        ),
        (
            "url: 'sqlite:////a', mode: upsert, key: [k], origin: true",
            (
                "origin: does not go with mode: upsert, where what a row was before is not kept; "
                "leave it out"
            ),
        ),
    ],
)
def test_a_fault_of_the_section_is_explained_without_the_url(
    tmp_path: Path, fields: str, problem: str
) -> None:
    """The message names the field and the remedy."""
    table = "" if "table: a" in fields else ", table: t"
    text = CHANNELS.replace("noop", f"{{type: sql, {fields}{table}}}")
    *_, found = refused(tmp_path, text)
    assert found.startswith("channels.flights.sink.")
    assert found.partition(" (line ")[0].rpartition(".")[2] == problem.partition(":")[0]
    assert found.partition("): ")[2] == problem.partition(": ")[2]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "appended again"),
        ({"mode": "upsert", "key": "k"}, "upserted again by their keys"),
        ({"mode": "merge", "key": "k", "merge": {"n": "sum"}}, "sums have them twice"),
    ],
)
def test_a_mode_says_what_a_replay_does(fields: dict[str, Any], says: str) -> None:
    """Rows are there twice, take each other's place, or add up."""
    assert says in _sink(**fields).replayed


def test_a_url_in_place_of_the_sink_is_not_quoted(tmp_path: Path) -> None:
    """A password that was put in a wrong place is masked there too."""
    (found,) = refused(tmp_path, CHANNELS.replace("noop", f"'{URL}'"))
    assert found == (
        "channels.flights.sink.function (line 7): *** is not an import path such as "
        "package.module:name"
    )
