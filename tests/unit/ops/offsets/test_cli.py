from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from headrace.config import ChannelConfig, KafkaConfig
from headrace.core.records import TopicPartition
from headrace.extensions.delta.sink import DeltaSink
from headrace.kafka.ports import StoredOffset
from headrace.ops.offsets import commands
from headrace.ops.offsets.cli import app
from headrace.ops.offsets.plan import change_to
from headrace.ops.offsets.reader import PartitionOffsets
from headrace.ops.offsets.sink_offsets import StartPrecedence, start_precedence
from headrace.processors import BatchProcessor, BatchResponse
from headrace.sinks import Guarantee
from headrace.sinks.console import NoopSink

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.core.records import Assignment, Batch


class Plain(BatchProcessor):
    """A processor that goes by the group's offsets."""

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Advance."""
        del batch
        return BatchResponse.advance()


class Keeping_(Plain):  # noqa: N801 - the plain word is taken by what is tested
    """A processor that has offsets of its own."""

    def stored_offset(self, assignment: Assignment) -> int | None:
        """Return some."""
        del assignment
        return 7


class NoopLike(NoopSink):
    """A sink that cannot have its offsets moved, and promises what a test says."""


def call(*arguments: str) -> tuple[int, str]:
    """Call the command line; return the exit code and what it said on standard error."""
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "noon"], "shift-by:N"),
        (["--to", "datetime:noon"], "2013-01-01T05:00:00Z"),
        (["--to", "latest", "--topic", "events:"], "TOPIC:0,3"),
        ([], "--to"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_opened(options: list[str], said: str) -> None:
    """Exit code 2, and how to write it."""
    code, errors = call("reset", "-c", "none.yaml", *options)
    assert code == 2
    assert said in " ".join(errors.replace("│", " ").split())


def test_a_configuration_that_is_missing_is_named(tmp_path: Path) -> None:
    """Exit code 2, as with the other commands."""
    code, errors = call("show", "-c", str(tmp_path / "none.yaml"))
    assert code == 2
    assert "none.yaml cannot be read" in errors


def at(group: int | None, sink: int | None = None) -> PartitionOffsets:
    """Return a partition's offsets in a log from 10 to 100."""
    stored = None if group is None else StoredOffset(group, 3)
    return PartitionOffsets(TopicPartition("events", 0), "c/g/t/0", 10, 100, stored, sink)


@pytest.mark.parametrize(
    ("offsets", "lag", "notes"),
    [
        (at(40), 60, []),
        (at(40, 40), 60, []),
        (at(40, 50), 50, ["the sink's offset counts, not the group's"]),
        (at(None), None, ["no offset yet: initial_offset decides"]),
        (at(None, 20), 80, ["the sink's offset counts, not the group's"]),
        (at(9), None, ["outside of the log: offset_out_of_range decides"]),
        (at(101), None, ["outside of the log: offset_out_of_range decides"]),
        (
            replace(at(40), group=StoredOffset(40, 3, "a", "former"), topic_id="present"),
            90,
            ["the group's offset is of a former topic of that name: the first record"],
        ),
    ],
)
def test_the_effect_of_a_start_is_explained(
    offsets: PartitionOffsets, lag: int | None, notes: list[str]
) -> None:
    """The sink wins over the group, and policies decide without a stored offset."""
    assert (offsets.lag, [*offsets.disagreement, *offsets.remarks]) == (lag, notes)
    (shown,) = commands.offsets_json([offsets])
    assert (shown["lag"], shown["notes"]) == (lag, notes)


def test_a_plan_is_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Old, new and the difference, from where a start would have gone on."""
    plan = (change_to(at(40, 50), 45), change_to(at(45), 45), change_to(at(None), 1000))
    commands.plan_table(plan)
    again = "-5  the sink has output of these records; the sink's offset counts, not the group's"
    lines = capsys.readouterr().out.splitlines()[1:]
    rows = [line.rstrip().split(maxsplit=4) for line in lines]
    assert rows == [
        ["events", "0", "50", "45", again],
        ["events", "0", "45", "45"],
        ["events", "0", "-", "100", "1000 is past the log: its end"],
    ]
    commands.print_json(commands.plan_json(plan))
    shown: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [(s["old_offset"], s["new_offset"], s["changes"]) for s in shown] == [
        (50, 45, True),
        (45, 45, False),
        (None, 100, True),
    ]


def channel(**settings: Any) -> ChannelConfig:
    """Return a channel's configuration."""
    return ChannelConfig.model_validate({"topics": ["events"], "group": "group", **settings})


def test_the_keeper_of_offsets_follows_from_the_configuration(tmp_path: Path) -> None:
    """A Delta table can be asked and changed; other sinks keep no offsets."""
    spark = {"type": "spark", "reducer": "some.module:reduce"}
    table = start_precedence(
        channel(processor=spark, sink={"type": "delta", "path": str(tmp_path / "table")}),
        [],
        KafkaConfig(),
    )
    assert isinstance(table.sink_offsets, DeltaSink)
    assert not (tmp_path / "table").exists()
    assert (
        start_precedence(channel(processor=spark, sink="noop"), [], KafkaConfig())
        == StartPrecedence()
    )
    inline = {"type": "arrow", "reducer": "some.module:reduce"}
    assert (
        start_precedence(channel(processor=inline, sink="noop"), [], KafkaConfig())
        == StartPrecedence()
    )
    simple = channel(processor={"type": "simple"}, sink="some.module:function")
    assert start_precedence(simple, [], KafkaConfig()) == StartPrecedence()


def test_a_processor_with_offsets_of_its_own_is_out_of_reach() -> None:
    """A processor that overrides stored_offset keeps offsets in an unknown place."""
    plain, keeping = (
        {"type": "custom", "factory": f"{__name__}:{name}"} for name in ("Plain", "Keeping_")
    )
    assert start_precedence(channel(processor=plain), [], KafkaConfig()) == StartPrecedence()
    found = start_precedence(channel(processor=keeping), [], KafkaConfig())
    assert (found.sink_offsets, found.out_of_reach) == (None, f"processor {__name__}:Keeping_")


def test_state_is_moved_with_its_offsets_by_other_commands() -> None:
    """The message names them."""
    keyed = {"type": "keyed", "reducer": "json:dumps"}
    found = start_precedence(channel(processor=keyed, sink=None), [], KafkaConfig())
    assert found.sink_offsets is None
    assert "headrace state forget and import" in (found.out_of_reach or "")


@pytest.mark.parametrize(
    ("guarantee", "out_of_reach"),
    [(Guarantee.EXACTLY_ONCE, f"sink {__name__}:NoopLike"), (Guarantee.AT_LEAST_ONCE, None)],
)
def test_a_sink_of_one_s_own_is_asked_for_its_offsets(
    guarantee: Guarantee, out_of_reach: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that keeps offsets and cannot have them moved is out of reach; one without is not."""
    monkeypatch.setattr(NoopLike, "guarantee", guarantee)
    inline = {"type": "arrow", "reducer": "some.module:reduce"}
    sink = {"type": "custom", "factory": f"{__name__}:NoopLike"}
    kept = start_precedence(channel(processor=inline, sink=sink), [], KafkaConfig())
    assert kept == StartPrecedence(out_of_reach=out_of_reach)
