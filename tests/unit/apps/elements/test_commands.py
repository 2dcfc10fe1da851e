"""headrace elements run and show: what needs no broker."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import yaml
from typer.testing import CliRunner

from headrace.apps.elements import commands, relay_reducer
from headrace.apps.elements.daemon_config import AppNode, own_topics
from headrace.cli import app
from headrace.config import ChannelConfig, Config
from headrace.core.errors import ConfigError, ImportPathError, StartError
from headrace.extensions.keyed.names import BY_KEY_SETTINGS
from headrace.extensions.keyed.section import KeyedProcessorConfig, RekeyProcessorConfig
from headrace.kafka.ports import TopicInfo
from headrace.keyed import Event
from headrace.processors.factory import build_processor
from headrace.sinks.sections import KafkaSinkConfig
from tests.unit.apps.elements.programs import HelloApp, HelloSingleton, Shop
from tests.unit.apps.elements.test_app import Totals, Visits

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.apps.elements import App
    from headrace.kafka.catalog import NewTopic

PROGRAMS = "tests.unit.apps.elements.programs"


def channels_of(made: App, path: Path) -> Mapping[str, ChannelConfig]:
    """Return the channels of an application, as the configuration takes them."""
    program = f"{PROGRAMS}:{type(made).__name__}"
    node = AppNode(program, made.plan(), "localhost:9092", path)
    return Config.model_validate(node.configuration()).channels


def test_an_application_becomes_channels_that_headrace_takes(tmp_path: Path) -> None:
    """One for each part, and one for each input stream that is written again by key."""
    found = channels_of(Shop(), tmp_path)
    assert list(found) == ["shop.orders.intake", "shop.Basket", "shop.SalesOfGood"]
    intake, basket, sales = found.values()
    assert isinstance(intake.processor, RekeyProcessorConfig)
    assert (intake.processor.key, intake.topics) == ("value.customer", ("orders",))
    assert intake.sink is not None
    assert intake.sink.topic_written == basket.topics[0] == "shop.Basket.orders.by-key"
    assert isinstance(basket.processor, KeyedProcessorConfig)
    assert basket.processor.keyword_arguments() == {
        "app": f"{PROGRAMS}:Shop",
        "part": "Basket",
        "name": "shop",
        "plan": Shop().plan().digest,
    }
    assert (sales.topics, sales.sink) == (("shop.SalesOfGood.goods.by-key",), None)


def test_a_key_finder_that_is_a_function_is_made_where_the_channel_starts(tmp_path: Path) -> None:
    """The channel names its factory; a singleton's input is read as it is."""
    intake, _ = channels_of(HelloApp(), tmp_path).values()
    assert isinstance(intake.processor, RekeyProcessorConfig)
    assert intake.processor.key == "headrace.apps.elements:key_function"
    options = intake.processor.options
    assert options == {"app": f"{PROGRAMS}:HelloApp", "stream": "names", "name": "hello-app"}
    (only,) = channels_of(HelloSingleton(), tmp_path).values()
    assert isinstance(only.processor, KeyedProcessorConfig)
    assert (only.processor.key, only.topics) == ("partition", ("names",))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, None),
        ({"options": {"app": f"{PROGRAMS}:HelloApp", "stream": "nmes"}}, "has no stream 'nmes'"),
        ({"key": "builtins:dict"}, "returned a dict, which cannot be called; have it return a"),
        ({"options": None}, "it is called with"),
    ],
)
def test_a_channel_whose_key_function_cannot_be_made_is_not_started(
    changed: dict[str, Any], words: str | None, tmp_path: Path
) -> None:
    """Options say that the key names a factory; without them it is called with each event."""
    node = AppNode(f"{PROGRAMS}:HelloApp", HelloApp().plan(), "k:9092", tmp_path)
    document = node.configuration()["channels"]["hello-app.names.intake"]
    document["processor"].update(changed)
    channel = ChannelConfig.model_validate(document)
    if words is None:
        assert build_processor(channel, no_spark, "m", None, tmp_path) is not None
        return
    with pytest.raises(ImportPathError, match=words):
        build_processor(channel, no_spark, "m", None, tmp_path)


def no_spark() -> NoReturn:
    """Fail: engine arrow takes no Spark."""
    raise AssertionError("engine: arrow takes no Spark")


def test_a_stream_to_every_instance_is_written_to_each_partition(tmp_path: Path) -> None:
    """An input stream by a channel of its own, which keeps nothing."""
    relay, visits = channels_of(Visits(), tmp_path).values()
    assert isinstance(relay.processor, KeyedProcessorConfig)
    assert (relay.topics, relay.processor.key) == (("prices",), "partition")
    assert isinstance(relay.sink, KafkaSinkConfig)
    assert (relay.sink.topic, relay.sink.to_all) == ("visits.Visit.prices.by-key", True)
    assert visits.topics == ("visits", "visits.Visit.prices.by-key")
    event = Event({"price": 1}, 5, "prices", 0, 0)
    _, (output,), _ = relay_reducer()("0", None, [event], 0)
    assert (output.value, output.key, output.ts) == (b'{"price":1}', None, 5)


def test_run_prints_the_configuration_of_an_application(tmp_path: Path) -> None:
    """With what the command line says of brokers, and nothing is asked of them."""
    options = ["--app", f"{PROGRAMS}:Shop", "--brokers", "k:1", "--state-dir", str(tmp_path)]
    done = CliRunner().invoke(
        app, ["elements", "run", *options, "--name", "mall", "--print-config"]
    )
    assert done.exit_code == 0, done.output
    found = yaml.safe_load(done.stdout)
    assert found["kafka"] == {"bootstrap_servers": "k:1"}
    assert list(found["channels"]) == ["mall.orders.intake", "mall.Basket", "mall.SalesOfGood"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "part Basket: group shop.Basket"),
        (["--mermaid"], "flowchart LR"),
        (["--json"], '"name": "shop"'),
    ],
)
def test_show_draws_an_application(options: list[str], words: str) -> None:
    """The forms are text, a picture, and JSON."""
    done = CliRunner().invoke(app, ["elements", "show", "--app", f"{PROGRAMS}:Shop", *options])
    assert (done.exit_code, words in done.stdout) == (0, True), done.output
    if "--json" in options:
        assert json.loads(done.stdout)["parts"]["Basket"]["within"] == ["sums"]


def test_a_singleton_of_a_member_takes_no_workers(tmp_path: Path) -> None:
    """The instance is in the memory of the process; the error names the element."""
    node = AppNode("x:y", Totals().plan(), "k:1", tmp_path, engine="spark")
    with pytest.raises(
        ConfigError, match="element Total: it is one for each member, in the memory"
    ):
        node.configuration()


@pytest.mark.parametrize("command", [["run"], ["show"]])
@pytest.mark.parametrize(
    ("path", "words"),
    [("nowhere:App", "no module 'nowhere'"), (f"{PROGRAMS}:Hello", "and no application")],
)
def test_what_is_no_application_is_told_in_one_line(
    command: list[str], path: str, words: str
) -> None:
    """The exit code is 2."""
    done = CliRunner().invoke(app, ["elements", *command, "--app", path])
    assert (done.exit_code, words in done.output) == (2, True), done.output


class Catalog:
    """A cluster's topics by their partitions."""

    def __init__(self, **there: int) -> None:
        self.topics = {name: _info(name, count) for name, count in there.items()}
        self.made: dict[str, Mapping[str, str]] = {}

    def describe(self, names: Collection[str], _: Any) -> dict[str, TopicInfo]:
        """Return those that there are."""
        return {name: self.topics[name] for name in names if name in self.topics}

    def create(self, topic: NewTopic, _: Any) -> bool:
        """Create a topic."""
        self.topics[topic.name] = _info(topic.name, topic.partitions)
        self.made[topic.name] = topic.settings
        return True

    def settings(self, topic: str, _: Any) -> dict[str, str]:
        """Return the settings of a topic."""
        return {"max.message.bytes": "1000", **self.made.get(topic, {})}

    def close(self) -> None:
        """Do nothing."""


def _info(name: str, partitions: int) -> TopicInfo:
    return TopicInfo(name, "id", partitions)


def test_missing_topics_are_created_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the application's own lose no record by time; without --create one is named."""
    catalog = Catalog(orders=4)
    monkeypatch.setattr(commands, "KafkaTopicCatalog", lambda *_: catalog)
    plan = Shop().plan()
    with pytest.raises(StartError, match="topic shop-alarms does not exist, which app"):
        commands.open_topics({}, plan, None)
    commands.open_topics({}, plan, 3)
    assert {name: each.partitions for name, each in catalog.topics.items()} == {
        "orders": 4,
        "shop.Basket.orders.by-key": 3,
        "shop.SalesOfGood.goods.by-key": 3,
        "shop-alarms": 3,
        "shop.dead": 1,
    }
    assert BY_KEY_SETTINGS.items() <= catalog.made["shop.SalesOfGood.goods.by-key"].items()
    assert own_topics(plan)["shop.Basket.orders.by-key"] == ()
    commands.open_topics({}, plan, None)


def test_the_document_shows_what_the_command_prints_of_its_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan in the page is that of the program above it, with its digest."""
    page = (Path(__file__).parents[4] / "docs/elements.md").read_text()
    page = page[page.index("\n## Applications\n") :]
    program = page.split("```python\n", 1)[1].split("\ntest = ", 1)[0]
    (tmp_path / "shop.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    done = CliRunner().invoke(app, ["elements", "show", "--app", "shop:Shop"])
    sys.modules.pop("shop", None)
    shown = page.split("$ headrace elements show --app shop:Shop\n", 1)[1].split("$ ", 1)[0]
    assert done.stdout == shown, done.output
