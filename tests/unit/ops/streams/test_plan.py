"""The command that shows what a topology is run as."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.ops.streams.commands import plan_lines
from tests.unit.extensions.streams import programs

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

_CODE = "tests.unit.extensions.streams.programs"

_PAGES = f"  pages: {{code: '{_CODE}:top_pages', group: shop}}\n"
_WORDS = f"  words: {{code: '{_CODE}:word_count', group: texts}}\n"


def shown(folder: Path, file: str, *arguments: str) -> Result:
    """Run the command with a configuration."""
    path = folder / "headrace.yaml"
    path.write_text(file, encoding="utf-8")
    return CliRunner().invoke(app, ["streams", "plan", *arguments, "-c", str(path)])


def test_a_plan_is_shown_by_channel(tmp_path: Path) -> None:
    """The only topology need not be named; channels are in the order of the data."""
    result = shown(tmp_path, f"topologies:\n{_PAGES}")
    assert result.exit_code == 0
    # two stores, whose fingerprints are of what their rows depend on
    windows, rows = (each.fingerprint for each in programs.top_pages().plan("pages").stores)
    assert (
        result.output
        == f"""\
topology pages, group shop: 3 channels, 2 stores

channel pages.clicks, group shop.clicks
  reads
    clicks
  operators
    stream of clicks
    key_by 'pages', to shop.pages.by-key
  writes
    shop.pages.by-key

channel pages.pages, group shop.pages
  reads
    shop.pages.by-key
  operators
    aggregate 'pages'
    emit
    key_by 'top', to shop.top.by-key
  stores
    pages: windows, changelog shop.pages.by-key.state, fingerprint {windows}
  writes
    shop.top.by-key

channel pages.top, group shop.top
  reads
    shop.top.by-key
  operators
    aggregate 'top'
    emit
    to 'top-pages'
  stores
    top: rows, changelog shop.top.by-key.state, fingerprint {rows}
  writes
    top-pages
"""
    )


def test_a_table_is_shown_with_the_topic_that_it_is_of() -> None:
    """Both topics that are read in tasks are listed, and the table's store."""
    lines = list(plan_lines(programs.enrich().plan("demo", "shop")))
    assert "    table 'users' of users" in lines
    assert any(
        line.startswith("    users: table, changelog shop.clicks-by-user.") for line in lines
    )


@pytest.mark.parametrize(
    ("option", "made"), [("--json", "json"), ("--mermaid", "mermaid")], ids=["json", "mermaid"]
)
def test_a_plan_is_printed_for_programs(tmp_path: Path, option: str, made: str) -> None:
    """The document and the picture are the plan's own."""
    result = shown(tmp_path, f"topologies:\n{_PAGES}{_WORDS}", "words", option)
    assert result.exit_code == 0
    assert result.output == getattr(programs.word_count().plan("words", "texts"), made)() + "\n"
    assert made == "mermaid" or json.loads(result.output)["name"] == "words"


_CHANNELS = "channels:\n  a: {topics: x, group: g, processor: {type: simple}, sink: 'a:b'}\n"


@pytest.mark.parametrize(
    ("file", "arguments", "words"),
    [
        (
            f"topologies:\n{_PAGES}{_WORDS}",
            [],
            "there are several topologies; choose one: headrace streams plan pages|words",
        ),
        (f"topologies:\n{_PAGES}", ["page"], "there is no topology page; did you mean pages?"),
        (_CHANNELS, [], "the configuration has no topologies; give one: topologies: {NAME: {code:"),
        (_CHANNELS, ["pages"], "the configuration has no topologies; give one"),
        (f"topologies:\n{_PAGES}", ["--json", "--mermaid"], "does not go with --json"),
        ("topologies:\n  a: {code: 'm.none:f', group: g}\n", [], "m.none:f, which cannot be used"),
    ],
)
def test_a_topology_that_is_not_found_is_told(
    tmp_path: Path, file: str, arguments: list[str], words: str
) -> None:
    """The exit code is that of a configuration or command line that cannot be used."""
    result = shown(tmp_path, file, *arguments)
    assert result.exit_code == 2
    assert words in result.output
