"""The processor of channels with state, as the factory builds it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

import pytest

from headrace.config import ChannelConfig
from headrace.core.errors import StartError
from headrace.extensions.keyed.runtime.processor import KeyedProcessor
from headrace.processors.factory import build_processor

if TYPE_CHECKING:
    from pathlib import Path


def no_spark() -> NoReturn:
    """Fail: engine arrow takes no Spark."""
    raise AssertionError("engine: arrow takes no Spark")


def writes(key: str, state: object, facts: list[object], now: int) -> NoReturn:
    """Stand for a reducer that says what it writes to."""
    raise NotImplementedError


writes.outputs = ("reports",)  # type: ignore[attr-defined]


def counts(key: str, state: object, facts: list[object], now: int) -> NoReturn:
    """Stand for a reducer that says what phases there are, and does not know how."""
    raise NotImplementedError


counts.phases = ("open", "closed")  # type: ignore[attr-defined]


def channel(**processor: object) -> ChannelConfig:
    """Return a channel with state, in this process."""
    chosen = {"type": "keyed", "engine": "arrow", **processor}
    return ChannelConfig.model_validate({"topics": ["in"], "group": "g", "processor": chosen})


def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It names the group and the command, and is no traceback."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    for name in ("headrace.extensions.keyed.runtime.build", "headrace.extensions.keyed.store"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(StartError, match=r"group g .* pip install 'headrace\[keyed\]'"):
        build_processor(channel(reducer="json:dumps"), no_spark, "m", None, tmp_path)


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        ({"reducer": "no_such_module_here:reduce"}, "no_such_module_here"),
        ({"reducer": "os.path:basename"}, "basename"),
        ({"factory": "builtins:dict"}, "must return a function of"),
        ({"reducer": f"{__name__}:writes"}, "writes to 'reports', and the channel has no sink"),
        ({"reducer": f"{__name__}:counts"}, "has a tuple in its attribute phases; it has to be"),
    ],
)
def test_a_reducer_that_cannot_be_used_stops_the_start(
    processor: dict[str, str], words: str, tmp_path: Path
) -> None:
    """It is missing, takes other arguments, is no function, or writes to what is not there."""
    with pytest.raises(StartError, match=words):
        build_processor(channel(**processor), no_spark, "m", None, tmp_path)


def rekeying(key: str, engine: str = "arrow") -> ChannelConfig:
    """Return a channel that re-keys, in this process or another."""
    processor = {"type": "rekey", "engine": engine, "key": key}
    sink = {"type": "kafka", "topic": "out"}
    return ChannelConfig.model_validate(
        {"topics": ["in"], "group": "g", "processor": processor, "sink": sink}
    )


def test_re_keying_takes_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no store, so nothing of it is imported."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    processor = build_processor(rekeying("value.id"), no_spark, "m")
    assert not isinstance(processor, KeyedProcessor)
    assert processor.in_columns


@pytest.mark.parametrize(
    "built",
    [rekeying("value.id", "spark"), channel(reducer="headrace.keyed:count", engine="spark")],
)
def test_on_spark_the_error_says_that_spark_is_to_be_installed(
    built: ChannelConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The missing package is that of the engine, and not that of states."""
    monkeypatch.setitem(sys.modules, "headrace.extensions.spark.keyed", None)
    with pytest.raises(StartError, match=r"group g takes pyspark.* 'headrace\[spark\]'"):
        build_processor(built, no_spark, "m", None, tmp_path)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("no_such_module_here:key", "no_such_module_here"),
        ("os.path:commonprefix_", "did you mean posixpath:commonprefix"),
        ("datetime:timezone.utc", "cannot be called|has no"),
        ("operator:add", r"it is called with \(event\)"),
    ],
)
def test_a_key_function_that_cannot_be_used_stops_the_start(key: str, words: str) -> None:
    """It is missing, or takes other arguments than the event."""
    with pytest.raises(StartError, match=words):
        build_processor(rekeying(key), no_spark, "m")
