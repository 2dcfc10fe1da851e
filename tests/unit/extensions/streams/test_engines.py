"""The engine of a part of a topology, by its section."""

from __future__ import annotations

import pytest

from headrace.config import ChannelConfig, Config
from headrace.core.extras import Extra
from headrace.extensions.streams.section import StreamsProcessorConfig
from headrace.extensions.streams.topology import Topology
from headrace.streams import Field, Row, count, key
from tests.unit.extensions.streams import programs


class Named(Row):
    user: Field[str]


class Counted(Row):
    user: Field[str]
    n: Field[int]


def with_function() -> Topology:
    """Return a topology of two parts, the first of which calls a Python function."""
    app = Topology()
    named = app.stream("clicks", Named).map(lambda row: row, Named)
    named.group_by(Named.user, name="n").agg(Counted, user=key, n=count()).updates().to("n")
    return app


def without_function() -> Topology:
    """Return a topology of expressions."""
    return programs.word_count()


def channels(code: str, **section: object) -> dict[str, ChannelConfig]:
    """Return the channels that a topology of this module becomes."""
    topology = {"code": f"{__name__}:{code}", "group": "shop", **section}
    document = {"instance_id": "one", "topologies": {"t": topology}}
    return dict(Config.model_validate(document).channels)


def engines(made: dict[str, ChannelConfig]) -> dict[str, str]:
    """Return the first note of each channel: its engine, and why."""
    return {name: next(iter(each.processor.notes(each))) for name, each in made.items()}


@pytest.mark.parametrize(
    ("code", "engine", "on_spark"),
    [
        ("with_function", "arrow", []),
        ("with_function", "spark", ["t.clicks", "t.n"]),
        ("with_function", "auto", ["t.clicks"]),
        ("without_function", "auto", []),
    ],
)
def test_a_part_runs_on_spark_as_its_engine_says(
    code: str, engine: str, on_spark: list[str]
) -> None:
    """``auto`` is Spark only for a part whose operators without state call a function."""
    made = channels(code, engine=engine)
    assert [name for name, each in made.items() if each.on_spark] == on_spark


def test_the_default_engine_is_arrow() -> None:
    """A topology needs no Spark."""
    assert not any(each.on_spark for each in channels("with_function").values())


def test_a_part_may_have_another_engine() -> None:
    """The processor of a channel says it."""
    made = channels("with_function", channels={"n": {"processor": {"engine": "spark"}}})
    assert [name for name, each in made.items() if each.on_spark] == ["t.n"]


def test_notes_say_what_runs_where_and_why() -> None:
    """The operators in workers are named, and what ``auto`` decided by."""
    assert engines(channels("with_function", engine="auto")) == {
        "t.clicks": "engine spark: in Spark's workers stream, map, key_by 'n' "
        "(auto: map calls a Python function)",
        "t.n": "engine arrow, by auto: no operator without state calls a Python function, "
        "so all operators run in the daemon",
    }
    assert engines(channels("with_function", engine="spark"))["t.n"] == (
        "engine spark: in Spark's workers reading; the rest, which needs state, in the daemon; "
        "groups come back for aggregate 'n', or rows where groups are many"
    )


def test_spark_that_is_not_installed_is_no_choice_of_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """The note says that it is missing; with ``spark`` the extra is asked for."""
    monkeypatch.setattr(Extra, "missing", property(lambda self: ["pyspark"]))
    monkeypatch.setattr(Extra, "installed", property(lambda self: self is not Extra.SPARK))
    made = channels("with_function", engine="auto")
    assert not made["t.clicks"].on_spark
    assert "Spark is not installed" in engines(made)["t.clicks"]
    processor = StreamsProcessorConfig.model_validate(
        channels("with_function", engine="spark")["t.clicks"].processor
    )
    assert (("engine",), Extra.SPARK) in processor.extras
