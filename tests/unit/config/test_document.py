from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from headrace.config import load
from headrace.config.loader import MAX_BYTES, MAX_VALUES, parse, read
from headrace.core.errors import ConfigError
from tests.unit.config.support import CHANNELS, loaded, refused

if TYPE_CHECKING:
    from pathlib import Path


def _refused(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return caught.value.problems


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is named by its absolute path."""
    path = tmp_path / "none.yaml"
    assert _refused(path) == [f"{path} cannot be read: No such file or directory"]


def test_each_mistake_stays_on_its_line(tmp_path: Path) -> None:
    """A line break in what the file refers to does not divide the sentence about it."""
    path = tmp_path / "headrace.yaml"
    path.write_text('kafka: {bootstrap_servers: "${file:no\\nfile}"}', encoding="utf-8")
    told = f"refers to {tmp_path}/no\\nfile, which cannot be read: No such file or directory"
    assert f"kafka.bootstrap_servers (line 1): {told}" in _refused(path)


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    """A folder in place of the file is called one."""
    assert _refused(tmp_path) == [f"{tmp_path} is a folder; name the file in it"]


def test_a_fifo_is_refused(tmp_path: Path) -> None:
    """Reading a FIFO would wait for a writer that may never come."""
    path = tmp_path / "headrace.yaml"
    os.mkfifo(path)
    assert _refused(path) == [f"{path} cannot be read: is no regular file"]


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without permission to read it is named with the system's reason."""

    def deny(path: Path, _: int) -> bytes:
        raise PermissionError(13, os.strerror(13), str(path))

    monkeypatch.setattr("headrace.config.loader.read_regular", deny)
    path = tmp_path / "headrace.yaml"
    path.touch()
    assert _refused(path) == [f"{path} cannot be read: Permission denied"]


def test_text_in_another_encoding_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are refused with the line they are on."""
    path = tmp_path / "headrace.yaml"
    path.write_bytes(b"channels:\n  caf\xe9: {}\n")
    assert _refused(path) == [f"{path} (line 2): is not UTF-8 text; save the file as UTF-8"]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """A file may begin with UTF-8's byte order mark."""
    path = tmp_path / "headrace.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + CHANNELS.encode())
    assert list(load(path).channels) == ["flights"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", " is empty; begin with 'channels:'"),
        ("# nothing but this\n", " is empty; begin with 'channels:'"),
        ("- a\n", " holds a list instead of a mapping; begin with 'channels:'"),
        ("channels", " holds one value instead of a mapping; begin with 'channels:'"),
        (
            "a: b: c",
            " (line 1, column 5): there is a colon too many, or the indentation is wrong",
        ),
        (
            "a: [1\nb: 2",
            " (line 2, column 2): a list in [] is not closed, or lacks a comma",
        ),
        (
            "a: 1\n  b: 2\n",
            " (line 2, column 4): there is a colon too many, or the indentation is wrong",
        ),
        (
            "a:\n  b: 1\n c: 2\n",
            " (line 3, column 2): the indentation is wrong, or something is not closed",
        ),
        ("a\nb: 1", " (line 2, column 2): there is a colon too many, or the indentation is wrong"),
        ("a: 1\nb\n", " (line 3, column 1): a key has no colon, or the indentation is wrong"),
        ("a:\n\t- 1", " (line 2, column 1): there is a tab; indent with spaces"),
        ("a: 'open", " (line 1, column 9): is not YAML: found unexpected end of stream"),
        (
            "a: @b",
            " (line 1, column 4): a value begins with a reserved character; put it in quotes",
        ),
        (
            "a: 1\n---\nb: 2",
            (" (line 2, column 1): there is a second document; keep one, without a second ---"),
        ),
        ("a: \0", ": has a control character, which YAML does not allow; remove it"),
        (
            "a: *b",
            (" (line 1, column 4): a value that begins with * is an alias; put text in quotes"),
        ),
        (
            "a: &",
            (" (line 1, column 5): a value that begins with & is an anchor; put text in quotes"),
        ),
        ("a: {b: 1\nc: 2", " (line 2, column 2): a mapping in {} is not closed, or lacks a comma"),
        (
            "a: &x 1\nb: &x 2",
            (" (line 2, column 4): a value that begins with & is an anchor; put text in quotes"),
        ),
        ('a: "\\q"', " (line 1, column 6): is not YAML: found unknown escape character ..."),
        (
            "a: !b!c d",
            (" (line 1, column 4): a value that begins with ! is a tag; put text in quotes"),
        ),
        ("a:\n  <<: 5", " (line 2, column 7): << takes a mapping or a list of mappings"),
        ("a: !!int b", " has a number or !! tag that YAML cannot read"),
        ("a: !!bool b", " has a number or !! tag that YAML cannot read"),
        ("a: " + "[\n" * 2000, " is nested too deeply"),
    ],
)
def test_broken_yaml_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    """A file that is not a YAML mapping is refused in one sentence, where it helps with a place."""
    assert refused(tmp_path, text) == [f"{tmp_path / 'headrace.yaml'}{sentence}"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("a: 1\na: 2\n", ["a (line 2): is given twice, first on line 1; keep one"]),
        (
            "a:\n  - b: 1\n    c: 1\n    b: 2\nd: 1\nd: 1",
            [
                "a[0].b (line 4): is given twice, first on line 2; keep one",
                "d (line 6): is given twice, first on line 5; keep one",
            ],
        ),
        ("1: a", ["(line 1): the key 1 is not text; put it in quotes"]),
        ("a: {on: 1}", ["a (line 1): the key on is not text; put it in quotes"]),
        ("a:\n  2024-01-01: 1\n  ~: 1", ["a (line 3): the key ~ is not text; put it in quotes"]),
        ("a: {[b]: 1}", ["a (line 1): a key is not text"]),
        ("a: !secret b", ["a (line 1): has a YAML tag (!); put text in quotes"]),
        ("a: !!binary aGk=", ["a (line 1): has a YAML tag (!); put text in quotes"]),
        ("a: !!set {b}", ["a (line 1): has a YAML tag (!); put text in quotes"]),
        ("a: &x [*x]", ["a[0] (line 1): an alias stands for what it is part of"]),
        ("a: &x\n  <<: *x", ["a (line 1): an alias stands for what it is part of"]),
    ],
)
def test_a_misleading_yaml_construct_is_refused(
    tmp_path: Path, text: str, sentences: list[str]
) -> None:
    """Duplicate keys, keys that are not text, tags and circles have path and line."""
    assert refused(tmp_path, text) == sentences


def test_an_explosion_of_aliases_is_refused(tmp_path: Path) -> None:
    """A few aliases that stand for very many values are refused early."""
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 9))
    assert refused(tmp_path, f"l0: &l0 x\n{levels}") == [
        f"the file has more than {MAX_VALUES} values"
    ]


def test_merged_mappings_may_be_overridden(tmp_path: Path) -> None:
    """A channel can take over the fields of another with << and give some of them anew."""
    text = CHANNELS.replace("flights:", "flights: &flights") + (
        "  again:\n    <<: [*flights]\n    group: other\n"
    )
    channels = loaded(tmp_path, text).channels
    assert channels["again"].topics == channels["flights"].topics
    assert channels["again"].group == "other"


def test_a_merged_mistake_has_the_line_it_stands_on(tmp_path: Path) -> None:
    """A mistake in a merged mapping has the line where it was written."""
    text = CHANNELS.replace("flights:\n", "flights: &flights\n    workers: 0\n", 1) + (
        "  again:\n    <<: *flights\n    group: other\n"
    )
    sentence = "0 is not a whole number from 1 to 256"
    assert refused(tmp_path, text) == [
        f"channels.flights.workers (line 4): {sentence}",
        f"channels.again.workers (line 4): {sentence}",
    ]


def test_dates_stay_text(tmp_path: Path) -> None:
    """A scalar that YAML reads as a date is text."""
    text = CHANNELS.replace("group: statistics", "group: 2024-01-01")
    assert loaded(tmp_path, text).channels["flights"].group == "2024-01-01"


def test_errors_in_yaml_do_not_quote_the_file(tmp_path: Path) -> None:
    """A mistake next to a secret does not bring the secret into the error."""
    for mistake in (
        "*hunter2",
        "!hunter2!x 1",
        "&hunter2 1\nb: &hunter2 *",
        "@hunter2",
        "'hunter2",
    ):
        text = f"kafka:\n  sasl:\n    password: {mistake}"
        assert "hunter2" not in " ".join(refused(tmp_path, text))


def test_lines_lead_to_values(tmp_path: Path) -> None:
    """Each value's line is known by the steps that lead to it."""
    path = tmp_path / "headrace.yaml"
    path.write_text("a:\n  b: 1\n  c:\n    - x\n    - {d: 2}\n", encoding="utf-8")
    document = parse(read(path), path)
    assert document.values == {"a": {"b": 1, "c": ["x", {"d": 2}]}}
    assert document.lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
        ("a", "c", 1, "d"): 5,
    }


@pytest.mark.parametrize("number", ["010", "-017", "0_7", "00"])
def test_numbers_of_base_8_are_refused(tmp_path: Path, number: str) -> None:
    """YAML 1.1 reads 010 as a number of base 8, which its writer does not mean."""
    (problem,) = refused(tmp_path, f"workers: {number}")
    assert problem == (
        f"workers (line 1): is {number}, which YAML takes for a number of base 8; leave the 0 at "
        "its beginning out, or put text in quotes"
    )


def test_a_0_is_a_number_like_any_other(tmp_path: Path) -> None:
    """So are numbers that only end with it, and text."""
    text = "admin: {port: 0}\nmetrics: {port: 1010}\nlogging: {level: '010'}"
    assert refused(tmp_path, f"{text}{CHANNELS}")[0].startswith("logging.level (line 3): '010' is")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """A configuration is never that large, and reading it would take long."""
    path = tmp_path / "headrace.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    (problem,) = _refused(path)
    assert problem == (
        f"{path} has more than 4 MiB, which no configuration has; is it the right file?"
    )


def test_the_first_problems_of_many_are_told(tmp_path: Path) -> None:
    """The first hundred from the top are listed, with the number of the others."""
    text = "\n".join(f"  c{n}: {{topcs: [t]}}" for n in range(5_000))
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, f"channels:\n{text}")
    error = caught.value
    assert len(error.problems) == 101
    assert error.problems[0].startswith("channels.c0.topics (line 2): is missing")
    assert error.problems[-1] == f"and {error.count - 100} more"
    assert error.count == 20_000
    assert len(str(error)) < 20_000


def test_a_hundred_problems_are_told_whole(tmp_path: Path) -> None:
    """Only what comes behind them is left to the next try."""
    problems = refused(tmp_path, "\n".join(f"k{n}: 010" for n in range(100)))
    assert len(problems) == 100
    assert refused(tmp_path, "\n".join(f"k{n}: 010" for n in range(103)))[100:] == ["and 3 more"]
