"""Sinks, processors and decoders that a configuration names as a package offers them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.config import CustomDecoding, load
from headrace.core.errors import ConfigError
from headrace.extensions.arrow.section import ArrowProcessorConfig
from headrace.processors.sections import CustomProcessorConfig
from headrace.sinks.sections import CustomSinkConfig
from tests.decoders import install_pairs

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config import ChannelConfig


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path, with a package that offers two sinks and a processor."""
    folder = tmp_path / "site-packages"
    offer(folder, "acme", "lake = acme.sinks:Lake", "cold = acme.sinks:Cold", processor="acme:run")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def offer(folder: Path, package: str, *sinks: str, processor: str | None = None) -> None:
    """Install the metadata of a package without its code."""
    info = folder / f"{package}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    lines = ["[headrace.sinks]", *sinks]
    if processor is not None:
        lines += ["[headrace.processors]", f"router = {processor}"]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def channel(folder: Path, processor: str, sink: str) -> ChannelConfig:
    """Load a configuration of one channel."""
    file = folder / "headrace.yaml"
    file.write_text(
        "kafka: {bootstrap_servers: b}\nchannels:\n  c:\n    group: g\n    topics: [t]\n"
        f"    processor: {processor}\n    sink: {sink}\n"
    )
    return load(file).channels["c"]


ARROW = '{type: arrow, reducer: "a:b"}'


def test_a_name_stands_for_the_factory_of_a_plug_in(packages: Path, tmp_path: Path) -> None:
    """From then on it is an import path as any other; nothing of the package is imported."""
    assert packages.is_dir()
    sink = channel(tmp_path, ARROW, "{type: custom, factory: lake}").sink
    assert isinstance(sink, CustomSinkConfig)
    assert sink.factory == "acme.sinks:Lake"
    file = tmp_path / "headrace.yaml"
    file.write_text(
        "kafka: {bootstrap_servers: b}\nchannels:\n  c: {group: g, topics: [t],"
        " processor: {type: custom, factory: router}}\n"
    )
    processor = load(file).channels["c"].processor
    assert isinstance(processor, CustomProcessorConfig)
    assert processor.factory == "acme:run"
    assert not [name for name in sys.modules if name.partition(".")[0] == "acme"]


def test_a_name_stands_for_a_decoder_of_rows_or_of_values(packages: Path, tmp_path: Path) -> None:
    """With its options, whose secrets only its factory sees; a name of ours stays what it is."""
    install_pairs(packages)
    wanted = '{type: arrow, reducer: "a:b", decode: pairs, schema: "id INT, raw BINARY", '
    rows = channel(tmp_path, wanted + "decoder_options: {separator: ;}}", "noop").processor
    file = tmp_path / "headrace.yaml"
    file.write_text(
        "kafka: {bootstrap_servers: b}\nchannels:\n"
        "  k: {group: g, topics: [t], processor: {type: keyed, reducer: 'a:b', value: pairs,"
        " engine: arrow, decoder_options: {password: secret}}}\n"
        "  r: {group: r, topics: [t], sink: {type: kafka, topic: o}, processor: {type: rekey,"
        " value: 'c.d:e', key: value.id, engine: arrow}}\n"
    )
    channels = load(file).channels
    assert isinstance(rows, ArrowProcessorConfig)
    assert rows.decoder == CustomDecoding("acme_pairs:Pairs", {"separator": ";"})
    keyed = channels["k"].processor.decoder
    assert keyed is not None
    assert keyed.factory == "acme_pairs:Pairs"
    assert keyed.keyword_arguments() == {"password": "secret"}
    assert channels["r"].processor.decoder == CustomDecoding("c.d:e", {})
    json = channel(tmp_path, '{type: arrow, reducer: "a:b", decode: json, schema: a INT}', "noop")
    assert json.processor.decoder is None
    assert CustomProcessorConfig(factory="a:b").decoder is None


@pytest.mark.parametrize(
    ("processor", "told"),
    [
        (
            "{type: arrow, reducer: 'a:b', decode: proto, schema: a INT}",
            (
                "decode (line 6): 'proto' is no plug-in of headrace.decoders; installed are none; "
                "install its package, or give none, json, json_schema, avro, protobuf, or an "
                "import path"
            ),
        ),
        (
            "{type: arrow, reducer: 'a:b', decode: 'a:b'}",
            "schema (line 6): is missing; decode: a:b needs the columns to decode",
        ),
        (
            "{type: arrow, reducer: 'a:b', decoder_options: {a: 1}}",
            "decoder_options (line 6): exists only with a decoder of your own as decode; write",
        ),
        (
            "{type: keyed, engine: arrow, reducer: 'a:b', value: text}",
            (
                "value (line 6): 'text' is no plug-in of headrace.decoders; installed are none; "
                "install its package, or give json, string, bytes, json_schema, avro, protobuf, or "
                "an import path"
            ),
        ),
        (
            "{type: keyed, engine: arrow, reducer: 'a:b', decoder_options: {a: 1}}",
            "decoder_options (line 6): exists only with a decoder of your own as value",
        ),
    ],
)
def test_a_decoder_that_cannot_be_is_refused(tmp_path: Path, processor: str, told: str) -> None:
    """With the line and what to write."""
    with pytest.raises(ConfigError) as caught:
        channel(tmp_path, processor, "noop" if "arrow" in processor else "null")
    (problem,) = caught.value.problems
    assert problem.startswith(f"channels.c.processor.{told}")


@pytest.mark.usefixtures("packages")
def test_an_unknown_plugin_is_refused(tmp_path: Path) -> None:
    """A processor's name is no sink's, and the installed ones are listed."""
    with pytest.raises(ConfigError) as caught:
        channel(tmp_path, ARROW, "{type: custom, factory: router}")
    (problem,) = caught.value.problems
    assert problem.startswith("channels.c.sink.factory (line 7): 'router' is no plug-in of ")
    assert "headrace.sinks; installed are cold, lake; install its package, or give" in problem


def test_a_name_that_two_packages_offer_is_refused(packages: Path, tmp_path: Path) -> None:
    """Which one is meant has to be said, unless both mean the same."""
    offer(packages, "bazaar", "lake = bazaar:Lake", "cold = acme.sinks:Cold")
    with pytest.raises(
        ConfigError, match=r"offered by several packages; give one of acme\.sinks:L"
    ):
        channel(tmp_path, ARROW, "{type: custom, factory: lake}")
    sink = channel(tmp_path, ARROW, "{type: custom, factory: cold}").sink
    assert isinstance(sink, CustomSinkConfig)
    assert sink.factory == "acme.sinks:Cold"


def test_the_command_lists_installed_plugins(packages: Path) -> None:
    """A line has the group, the name, the factory, and the package."""
    install_pairs(packages)
    done = CliRunner().invoke(app, ["plugins"])
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        "headrace.decoders pairs: acme_pairs:Pairs (acme-pairs 1.2)",
        "headrace.processors router: acme:run (acme 1.2)",
        "headrace.sinks cold: acme.sinks:Cold (acme 1.2)",
        "headrace.sinks lake: acme.sinks:Lake (acme 1.2)",
    ]


def test_the_command_says_that_there_is_none() -> None:
    """The tests' own environment has no such package."""
    assert "no package that is installed offers" in CliRunner().invoke(app, ["plugins"]).output
