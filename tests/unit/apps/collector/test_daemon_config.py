"""headrace collector run: its configuration, and command lines that cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
import yaml
from typer.testing import CliRunner

from headrace.apps.collector import daemon_config, group_of
from headrace.apps.collector.daemon_config import (
    CollectorOptions,
    checked,
    configuration,
    run,
    written,
)
from headrace.cli import app
from headrace.config import RekeyRejects, load, single_sinks
from headrace.core.errors import StartError
from headrace.core.imports import load_callable
from headrace.extensions.keyed.section import KeyedProcessorConfig, RekeyProcessorConfig
from headrace.kafka.errors import KafkaUnavailableError
from headrace.sinks.sections import KafkaSinkConfig
from headrace.zookeeper.identity import Identity
from tests.pages import blocks

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from headrace.kafka.catalog import NewTopic

_VARIABLES = ("BROKERLIST", "EVENT_TOPIC", "OUTCOME_TOPIC", "ZOOKEEPER")


def invoke(*arguments: str, **variables: str) -> Result:
    """Run the command with only these variables of its own."""
    environment = {f"COLLECTOR_{name}": variables.get(name) for name in _VARIABLES}
    return CliRunner().invoke(app, ["collector", "run", *arguments], env=environment)


def test_the_configuration_is_that_of_the_page() -> None:
    """Printed as docs/collector.md has it, for the command line that is said there."""
    (shown,) = (
        block for block in blocks() if (block.page, block.language) == ("docs/collector.md", "yaml")
    )
    folder = "/var/lib/headrace/collector"
    result = invoke("-brokerlist", "localhost:9092", "--state-dir", folder, "--print-config")
    assert (result.exit_code, result.stdout) == (0, shown.text)


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("rejected", [None, "rejected-events"])
def test_the_printed_configuration_loads(mode: str, rejected: str | None, tmp_path: Path) -> None:
    """Each option is in its place, and the reducer is made with its options."""
    wanted = CollectorOptions(
        "one:1,two:2",
        "events",
        "outcomes",
        rejected,
        zookeeper="three:3",
        mode=mode,
        engine="arrow",
        group="mine",
        state_dir=tmp_path,
        properties={"client.rack": "${HOME}"},
    )
    file = tmp_path / "written.yaml"
    file.write_text(written(configuration(wanted)), encoding="utf-8")
    config = load(file, {})
    channel = config.channels["collector"]
    processor = channel.processor
    assert isinstance(processor, KeyedProcessorConfig)
    assert config.kafka.bootstrap_servers == ("one:1", "two:2")
    assert config.kafka.properties == {"client.rack": "${HOME}"}
    assert config.zookeeper.hosts == ("three:3",)
    rekeyed = config.channels["collector.rekey"]
    assert (rekeyed.topics, rekeyed.group) == (("events",), "mine.rekey")
    assert isinstance(rekeyed.processor, RekeyProcessorConfig)
    assert load_callable(rekeyed.processor.key) is group_of
    assert (channel.topics, channel.group) == (("mine.events.by-key",), "mine")
    assert (processor.engine, processor.value) == ("arrow", "bytes")
    reducer = load_callable(processor.code)(**processor.keyword_arguments())
    assert reducer.outputs == (() if rejected is None else ("outcomes", "rejected"))
    sinks = single_sinks(channel.sink)
    topics = [sink.topic for sink in sinks.values() if isinstance(sink, KafkaSinkConfig)]
    assert topics == ["outcomes", *([] if rejected is None else [rejected])]


def test_records_that_fail_go_to_the_topic_that_is_named() -> None:
    """Letters of both channels are part of the results' transaction; the topic is created too."""
    document = yaml.safe_load(
        invoke("-brokerlist", "one:1", "--dead-letter-topic", "dead", "--print-config").stdout
    )
    wanted = CollectorOptions("one:1", "events", "outcomes", dead_letters="dead", create=2)
    assert document["channels"]["collector"]["rejects"]["topic"] == "dead"
    config = checked(configuration(wanted), wanted.file)
    for name in ("collector", "collector.rekey"):
        rejects = config.channels[name].rejects
        word = rejects.undecodable if isinstance(rejects, RekeyRejects) else rejects.failing
        assert (word, rejects.topic) == ("dead_letter", "dead")
    assert [topic.name for topic in wanted.topics] == ["events", "dead", "outcomes"]


def test_variables_stand_for_options() -> None:
    """The variables are the original's; the outcomes' topic is named after that of the events."""
    variables = {"BROKERLIST": "one:1", "EVENT_TOPIC": "events", "ZOOKEEPER": "two:2"}
    document = yaml.safe_load(invoke("--print-config", **variables).stdout)
    assert document["kafka"] == {"bootstrap_servers": "one:1"}
    assert document["zookeeper"] == {"hosts": "two:2"}
    assert document["channels"]["collector"]["topics"] == ["events"]
    assert document["channels"]["collector"]["sink"]["topic"] == "events-outcomes"


def test_outcomes_may_go_to_the_topic_of_the_events() -> None:
    """The collector skips the outcomes that it wrote, as the original does."""
    wanted = CollectorOptions("one:1", "events", "events", "rejected", create=2)
    config = checked(configuration(wanted), wanted.file)
    outputs = single_sinks(config.channels["collector"].sink)
    assert list(outputs.values()) == [
        KafkaSinkConfig(topic="events", loop=True),
        KafkaSinkConfig(topic="rejected"),
    ]
    assert [topic.name for topic in wanted.topics] == ["events", "rejected"]


def test_missing_brokers_are_said_as_the_original_says_it() -> None:
    """With its words and its exit code, and how they are given."""
    result = invoke()
    assert result.exit_code == 1
    said = result.stderr.splitlines()
    assert said[0] == "Missing argument - brokerlist"
    assert "COLLECTOR_BROKERLIST" in said[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-brokerlist", "x:y:z"], "--brokerlist 'x:y:z' is not a server"),
        (["--zookeeper", "x:y"], "--zookeeper 'x:y' is not a server"),
        (["--group", "a/b"], "--group 'a/b' is not a group name"),
        (["--group", "a b"], "--group is a b, and a topic cannot be called"),
        (
            ["-event-topic", "^a", "--outcome-topic", "b"],
            "--event-topic has patterns (^a)",
        ),
        (["-event-topic", "a b"], "--event-topic 'a b' is not a topic name"),
        (["--rejected-topic", "eventbus-collector"], "--rejected-topic is eventbus-collector"),
        (["--dead-letter-topic", "a b"], "--dead-letter-topic 'a b' is not a topic name"),
        (
            ["--dead-letter-topic", "eventbus-collector"],
            "--dead-letter-topic is eventbus-collector",
        ),
        (["-X", "foo=1"], "--property foo is no property"),
        (["-X", "group.id=1"], "--property group.id is Headrace's own"),
        (["-X", "foo"], "'foo' is not NAME=VALUE"),
        (["--mode", "loose"], "'loose' is not one of 'strict', 'compat'"),
        (["--engine", "flink"], "'flink' is not one of 'spark', 'arrow'"),
        (["--partitions", "0"], "'--partitions': Input should be greater"),
    ],
)
def test_a_command_line_that_cannot_be_used_is_refused(arguments: list[str], words: str) -> None:
    """With 2, also where only the configuration is printed; the option and the value are named."""
    given = [] if "-brokerlist" in arguments else ["-brokerlist", "localhost:9092"]
    result = invoke(*given, *arguments, "--print-config")
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in " ".join(result.stderr.split())


def test_a_configuration_that_a_process_runs_with_is_not_replaced(tmp_path: Path) -> None:
    """A second collector in a folder is refused with the name of the first, which goes on."""
    wanted = CollectorOptions("one:1", "events", "outcomes", state_dir=tmp_path)
    name = checked(configuration(wanted), wanted.file).instance_id
    daemon_config.write(wanted, name, "first: 1")
    first = Identity(tmp_path, name)
    first.acquire()
    try:
        with pytest.raises(StartError, match="a collector runs already with the folder"):
            daemon_config.write(wanted, name, "second: 2")
    finally:
        first.release()
    assert wanted.file.read_text(encoding="utf-8") == "first: 1"
    assert wanted.file.stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """With the option that names another one."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    wanted = CollectorOptions("one:1", "events", "outcomes", state_dir=tmp_path / "file")
    with pytest.raises(StartError, match=r"cannot be written: .*--state-dir"):
        daemon_config.write(wanted, "name", "")


class _Catalog:
    """Brokers with some topics."""

    topics: tuple[str, ...] | None = ()
    created: ClassVar[list[tuple[str, int, dict[str, str]]]] = []

    def __init__(self, *_: object) -> None:
        """Take what a client is made of."""

    def describe(self, topics: list[str], _: object) -> dict[str, None]:
        """Return the topics that exist."""
        if self.topics is None:
            raise KafkaUnavailableError("Kafka at one:1 does not answer")
        return dict.fromkeys(each for each in topics if each in self.topics)

    def create(self, topic: NewTopic, _: object) -> bool:
        """Note what is created."""
        self.created.append((topic.name, topic.partitions, dict(topic.settings)))
        return True

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("topics", "words"),
    [
        (None, "Kafka at one:1 does not answer"),
        ((), "there is no topic events and no topic outcomes at one:1"),
        (("events",), "there is no topic outcomes at one:1"),
    ],
)
def test_a_start_without_brokers_or_topics_ends_with_3(
    topics: tuple[str, ...] | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The reason is printed, and no file is written."""
    monkeypatch.setattr(daemon_config, "KafkaTopicCatalog", _Catalog)
    monkeypatch.setattr(_Catalog, "topics", topics)
    wanted = CollectorOptions("one:1", "events", "outcomes", state_dir=tmp_path)
    assert run(wanted, print_only=False) == 3
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_missing_topics_are_created_where_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the brokers' times for events; then the process starts on what was written."""
    served: list[Path] = []
    monkeypatch.setattr(daemon_config, "KafkaTopicCatalog", _Catalog)
    monkeypatch.setattr(_Catalog, "topics", ("outcomes",))
    monkeypatch.setattr(_Catalog, "created", [])

    def serve(file: Path) -> int:
        served.append(file)
        return 5

    monkeypatch.setattr("headrace.daemon.run", serve)
    wanted = CollectorOptions(
        "one:1", "events", "outcomes", "rejected", state_dir=tmp_path, create=3
    )
    assert run(wanted, print_only=False) == 5
    times = {"message.timestamp.type": "LogAppendTime"}
    assert _Catalog.created == [("events", 3, times), ("rejected", 3, {})]
    assert served == [tmp_path / "collector.yaml"]
    assert yaml.safe_load(served[0].read_text(encoding="utf-8")) == configuration(wanted)
