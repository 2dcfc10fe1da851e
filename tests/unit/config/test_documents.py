from __future__ import annotations

import re
from pathlib import Path

import yaml

from headrace.config import load, show
from headrace.config.problems import fields
from headrace.config.reference import BEGIN, END, chapters, render, update
from tests.unit.config.support import loaded

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "configuration.md"
EXAMPLE = ROOT / "examples" / "headrace.yaml"


def test_the_reference_names_every_field() -> None:
    """Each field has a row under the heading of its section."""
    text = render()
    for chapter in chapters():
        _, _, rest = text.partition(f"### {chapter.title}\n")
        section, _, _ = rest.partition("### ")
        for name, _field in fields(chapter.section):
            assert f"| `{name}` |" in section or (chapter.choice and name == "type")


def test_the_reference_is_written_between_its_markers() -> None:
    """The text around the tables is kept."""
    page = update(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert page == f"before\n{BEGIN}\n\n{render()}\n{END}\nafter\n"


def test_the_first_example_of_the_page_loads(tmp_path: Path) -> None:
    """The least file that the page shows is a file that can be used."""
    match = re.search(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    assert list(loaded(tmp_path, match[1]).channels) == ["flights"]


def test_the_example_loads() -> None:
    """The example file can be used, and its variables have their defaults."""
    config = load(EXAMPLE, {"HOME": "/home/me"})
    assert list(config.channels) == ["flights", "alerts", "audit"]
    assert config.kafka.bootstrap_servers == ("localhost:9092",)
    assert config.python_path == (EXAMPLE.parent,)


def test_the_commented_parts_of_the_example_load_too(tmp_path: Path) -> None:
    """The example stays valid with its comments uncommented."""
    text = EXAMPLE.read_text(encoding="utf-8")
    text = re.sub(r"^( *)# ((?:  )*[a-z_]+:(?: .*)?)$", r"\1\2", text, flags=re.MULTILINE)
    text = re.sub(r"^  acl: null .*\n", "", text, flags=re.MULTILINE).replace(
        "/run/secrets/kafka-password", "password"
    )
    (tmp_path / "password").write_text("hunter2\n", encoding="utf-8")
    config = loaded(tmp_path, text, {"ZOOKEEPER_PASSWORD": "hunter2"})
    assert config.instance_id == "reader-1"
    assert config.kafka.sasl is not None
    assert config.kafka.tls is not None
    assert config.zookeeper.acl == "creator"


def test_the_example_gives_defaults_as_they_are(tmp_path: Path) -> None:
    """In the example's sections, what no comment marks as its own is the default."""
    shown = yaml.safe_load(show(load(EXAMPLE, {"HOME": "/home/me"})))
    least = (
        "channels: {flights: {topics: [flights], group: flight-statistics, sink: noop, "
        'processor: {type: spark, reducer: "a:b"}}}'
    )
    default = yaml.safe_load(show(loaded(tmp_path, least)))
    for section in ("zookeeper", "logging", "metrics", "shutdown_timeout"):
        assert shown[section] == default[section]
    flights, plain = shown["channels"]["flights"], default["channels"]["flights"]
    for name in flights.keys() - {"processor", "sink", "rejects"}:
        assert flights[name] == plain[name], name
    assert flights["rejects"] == {**plain["rejects"], "undecodable": "fail"}
