"""The sections ``rejects`` and ``retry``: what each processor has, and what former keys are now."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.config import ChannelConfig, KeyedRejects, show
from headrace.config.former import (
    of_admission,
    of_late,
    of_letter_headers,
    of_letter_topic,
    of_on_error,
    of_on_poison,
    of_undecodable,
)
from headrace.config.models.base import Section
from headrace.config.models.processor import PROCESSORS as KINDS
from headrace.config.problems import fields
from headrace.config.reference import schema
from tests.unit.config.support import loaded, refused

#: Made once: it takes half a second.
SCHEMA = schema()

PACKAGE = Path(__file__).parents[3] / "headrace"

#: A processor of each type, and the sink that it needs.
PROCESSORS: dict[str, tuple[dict[str, Any], Any]] = {
    "simple": ({"type": "simple"}, "a:b"),
    "custom": ({"type": "custom", "factory": "a:b"}, None),
    "spark": ({"type": "spark", "reducer": "a:b"}, {"type": "kafka", "topic": "out"}),
    "decoding": (
        {"type": "arrow", "reducer": "a:b", "decode": "json", "schema": "a INT"},
        {"type": "kafka", "topic": "out"},
    ),
    "keyed": ({"type": "keyed", "reducer": "a:b"}, {"type": "kafka", "topic": "out"}),
    "graceful": (
        {"type": "keyed", "reducer": "a:b", "grace": "1h"},
        {"type": "kafka", "topic": "out"},
    ),
    "rekey": ({"type": "rekey", "key": "value.id"}, {"type": "kafka", "topic": "out"}),
}

#: The reasons that each of them has.
REASONS = {
    "simple": {"failing"},
    "custom": {"failing"},
    "spark": {"failing", "overflow"},
    "decoding": {"failing", "overflow", "undecodable"},
    "keyed": {"failing", "overflow", "undecodable"},
    "graceful": {"failing", "overflow", "undecodable", "late"},
    "rekey": {"failing", "undecodable"},
}
EVERY = ("failing", "overflow", "undecodable", "late")


def text(name: str, processor: dict[str, Any] | None = None, **channel: Any) -> str:
    """Return a file with a channel on a processor."""
    own, sink = PROCESSORS[name]
    document = {
        "topics": ["in"],
        "group": "g",
        "processor": {**own, **(processor or {})},
        **({"sink": sink} if sink else {}),
        **channel,
    }
    return yaml.safe_dump({"channels": {"a": document}})


def needed(name: str) -> dict[str, str]:
    """Return the rejects without which a processor's file is refused."""
    return {"late": "skip"} if name == "graceful" else {}


def test_no_conflict_says_that_a_key_has_no_effect() -> None:
    """Such a key does not exist there, so that no check has to tell it."""
    found = [
        (path.name, node.lineno)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "FieldConflict"
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and "no effect" in str(part.value)
    ]
    assert len(found) == 0, found


def every_section() -> list[type[Section]]:
    """Return the sections there are."""
    found, waiting = [], [Section]
    while waiting:
        subclasses = waiting.pop().__subclasses__()
        found += subclasses
        waiting += subclasses
    return [each for each in found if each.__module__.startswith("headrace.")]


def test_keys_that_exist_with_others_only_are_fields() -> None:
    """Each place in a table of such keys leads to a field, or could lead to one."""
    for section in every_section():
        names = {name for name, _ in fields(section)}
        assert {place.partition(".")[0] for place in section.only} <= names, section


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("reason", EVERY)
def test_a_processor_has_the_reasons_that_it_knows(tmp_path: Path, name: str, reason: str) -> None:
    """Those of others are an error that says where they exist."""
    rejects = {**needed(name), reason: "skip"}
    file = text(name, rejects=rejects)
    if reason in REASONS[name]:
        assert getattr(loaded(tmp_path, file).channels["a"].rejects, reason) == "skip"
        return
    (problem,) = refused(tmp_path, file)
    assert problem.startswith(f"channels.a.rejects.{reason} (line ")
    assert "exists only with " in problem or "it is one with a processor of type: " in problem


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_channel_shows_the_keys_that_exist(tmp_path: Path, name: str) -> None:
    """The shown text loads as the same configuration, and so does a dumped model."""
    config = loaded(tmp_path, text(name, rejects=needed(name)))
    shown = yaml.safe_load(show(config))["channels"]["a"]
    assert {reason for reason in EVERY if reason in shown["rejects"]} == REASONS[name]
    assert not {"topic", "headers", "max_pending", "max_consecutive"} & set(shown["rejects"])
    assert loaded(tmp_path, show(config)) == config
    channel = config.channels["a"]
    assert ChannelConfig.model_validate(channel.model_dump(by_alias=True)) == channel


def refused_by_schema(file: Any) -> list[str]:
    """Return what the schema says against a file."""
    # only what make test-all installs has it
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # noqa: PLC0415

    return sorted(each.message for each in Draft202012Validator(SCHEMA).iter_errors(file))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("reason", EVERY)
def test_the_schema_takes_the_rejects_that_the_file_may_have(name: str, reason: str) -> None:
    """An editor says of a file what its load says."""
    file = yaml.safe_load(text(name, rejects={**needed(name), reason: "skip"}))
    found = refused_by_schema(file)
    assert bool(found) == (reason not in REASONS[name]), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "processor", "channel", "is_right"),
    [
        ("simple", {"no_duplication": True}, {}, True),
        ("simple", {"no_duplication": True}, {"rejects": {"failing": "skip"}}, False),
        ("simple", {"no_duplication": False}, {"rejects": {"failing": "skip"}}, True),
        ("simple", {}, {"rejects": {"failing": "skip", "topic": "dead"}}, False),
        ("simple", {}, {"rejects": {"failing": "dead_letter", "topic": "dead"}}, True),
        ("spark", {"timestamps": "millis"}, {}, False),
        ("decoding", {"timestamps": "millis"}, {}, True),
        ("spark", {}, {"buffer": {"max_bytes": "1GiB"}}, True),
        ("spark", {}, {"buffer": {}, "source": "by_reference"}, False),
        ("keyed", {"decoder_options": {"a": 1}}, {}, False),
        ("keyed", {"decoder_options": {"a": 1}, "value": "a:b"}, {}, True),
        ("keyed", {"internal": {"partitions": 3}}, {}, False),
        ("keyed", {"internal": {"partitions": 3}, "key": "value.id"}, {}, True),
        ("rekey", {"reload": True, "key": "a:b"}, {}, True),
        ("keyed", {"on_poison": "drop"}, {}, False),
    ],
)
def test_the_schema_denies_keys_that_do_not_exist(
    name: str, processor: dict[str, Any], channel: dict[str, Any], is_right: bool
) -> None:
    """The schema agrees with the loader on each key."""
    file = yaml.safe_load(text(name, processor, **channel))
    found = refused_by_schema(file)
    assert (not found) == is_right, found


@pytest.mark.parametrize("kind", KINDS.types)
def test_the_schema_gives_each_type_its_rejects(kind: str) -> None:
    """An editor offers what a processor of that type knows, and denies a key without its value."""
    channel = SCHEMA["$defs"]["ChannelConfig"]
    (found,) = [
        each["then"]["properties"]["rejects"]["$ref"].rpartition("/")[2]
        for each in channel["allOf"]
        if kind in _types(each)
    ]
    assert found == KINDS[kind].rejects_section.__name__
    own = SCHEMA["$defs"][found]
    assert set(own["properties"]) == {name for name, _ in fields(KINDS[kind].rejects_section)}
    denied = {key for each in own["allOf"] for key in each["then"]["properties"]}
    assert denied == set(KINDS[kind].rejects_section.only)


def _types(condition: dict[str, Any]) -> list[str]:
    """Return the types of processors that a condition of a channel is about."""
    processor = condition["if"].get("properties", {}).get("processor", {})
    found: list[str] = processor.get("properties", {}).get("type", {}).get("enum", [])
    return found


@pytest.mark.parametrize(
    ("rejects", "missing"),
    [
        ({"failing": "dead_letter"}, "failing: dead_letter"),
        ({"undecodable": "quarantine"}, "undecodable: quarantine"),
        ({"late": "dead_letter"}, "late: dead_letter"),
        ({"overflow": "dead_letter", "late": "skip"}, "overflow: dead_letter"),
    ],
)
def test_dead_letters_without_a_topic_are_refused(
    tmp_path: Path, rejects: dict[str, str], missing: str
) -> None:
    """For each reason, and one is enough for all."""
    rejects = {"late": "skip", **rejects}
    (problem,) = refused(tmp_path, text("graceful", rejects=rejects))
    assert problem.startswith("channels.a.rejects.topic (line ")
    assert f"): is missing; {missing} needs a topic" in problem
    config = loaded(tmp_path, text("graceful", rejects={**rejects, "topic": "dead"}))
    assert config.channels["a"].rejects.topic == "dead"


def test_a_keyed_batch_is_never_given_up_whole(tmp_path: Path) -> None:
    """The fold rejects single facts; another failure is no fact's fault."""
    channel = loaded(tmp_path, text("keyed", rejects={"failing": "skip"})).channels["a"]
    assert (channel.failing_batches, channel.attempts) == ("fail", None)
    other = loaded(tmp_path, text("simple", rejects={"failing": "skip"})).channels["a"]
    assert (other.failing_batches, other.attempts) == ("skip", 5)


def test_facts_that_cannot_be_read_are_as_facts_that_fail_unless_it_is_said() -> None:
    """``fail`` leaves it to ``failing``, as with all processors."""
    assert KeyedRejects(failing="skip").unreadable == "skip"
    assert KeyedRejects(failing="fail", undecodable="skip").unreadable == "skip"
    assert KeyedRejects().unreadable == "fail"


#: Former keys of a channel on a processor: the place, what they were, and what they are now.
FORMER: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("simple", "on_error", {}, {}),
    ("simple", "on_error", {"policy": "retry", "backoff": "1s"}, {"retry": {"backoff": "1s"}}),
    ("simple", "on_error", {"policy": "stop"}, {"retry": {"attempts": 5}}),
    ("simple", "on_error", {"policy": "stop", "max_attempts": 2}, {"retry": {"attempts": 2}}),
    ("spark", "on_error", {"policy": "skip"}, {"rejects": {"failing": "skip"}}),
    (
        "custom",
        "on_error",
        {
            "policy": "dead_letter",
            "max_attempts": 2,
            "max_backoff": "9s",
            "dead_letter": {"topic": "dead", "max_consecutive": 3, "headers": "both"},
        },
        {
            "retry": {"attempts": 2, "max_backoff": "9s"},
            "rejects": {
                "failing": "dead_letter",
                "topic": "dead",
                "max_consecutive": 3,
                "headers": "connect",
            },
        },
    ),
    ("decoding", "processor.undecodable", "fail", {}),
    ("decoding", "processor.undecodable", "skip", {"rejects": {"undecodable": "skip"}}),
    ("keyed", "processor.on_poison", "fail", {}),
    ("keyed", "processor.on_poison", "drop", {"rejects": {"failing": "skip"}}),
    ("rekey", "processor.on_poison", "drop", {"rejects": {"undecodable": "skip"}}),
    ("graceful", "processor.late", "drop", {"rejects": {"late": "skip"}}),
    ("keyed", "processor.late", "deliver", {}),
    ("keyed", "processor.admission", {}, {}),
    ("spark", "processor.admission", {"policy": "throttling"}, {"processor": {"max_rate": 200000}}),
    (
        "keyed",
        "processor.admission",
        {"policy": "throttling", "max_rate": 5, "overflow": "shed", "max_pending": 9, "to": "x"},
        {
            "processor": {"max_rate": 5},
            "rejects": {"overflow": "dead_letter", "max_pending": 9, "topic": "x"},
        },
    ),
    (
        "spark",
        "processor.admission",
        {"policy": "shedding", "shed": "oldest"},
        {"rejects": {"overflow": "skip", "overflow_choice": "oldest"}},
    ),
]


@pytest.mark.parametrize(("name", "place", "former", "now"), FORMER)
def test_a_former_key_has_its_translation_in_the_error(
    tmp_path: Path, name: str, place: str, former: Any, now: dict[str, Any]
) -> None:
    """The file that the error suggests loads, and means what is listed here."""
    outer, _, key = place.rpartition(".")
    given = {key: former}
    rejects = {} if "rejects" in now or not needed(name) else {"rejects": needed(name)}
    file = text(name, given, **rejects) if outer else text(name, None, **given, **rejects)
    problems = refused(tmp_path, file)
    (problem,) = [each for each in problems if each.startswith(f"channels.a.{place} (line ")]
    sentence = problem.partition("): ")[2]
    if not now:
        assert sentence == "is no key any more; leave it out, which is the same"
        return
    said = sentence.removeprefix("is in other keys of the channel now; write ")
    written = yaml.safe_load(said.removesuffix(" in its place").replace(" and ", "\n"))
    assert written == now
    loaded(tmp_path, text(name, written.pop("processor", None), **written))


@pytest.mark.parametrize("value", [None, 5, "x", [], {}])
def test_any_value_of_a_former_key_has_a_sentence(tmp_path: Path, value: Any) -> None:
    """Also one that was no value then."""
    for key in ("on_error", "undecodable", "on_poison", "late", "dead_letter", "admission"):
        outer = key == "on_error"
        file = text("keyed", None if outer else {key: value}, **({key: value} if outer else {}))
        place = key if outer else f"processor.{key}"
        (problem,) = refused(tmp_path, file)
        assert problem.startswith(f"channels.a.{place} (line ")
        assert "of the channel now; write" in problem or "is no key any more" in problem


def test_topics_and_headers_of_letters_have_one_place() -> None:
    """Each former key is translated to the one section."""
    assert of_letter_topic("dead", "keyed") == {"rejects": {"topic": "dead"}}
    assert of_letter_headers("both", "keyed") == {"rejects": {"headers": "connect"}}
    assert of_on_error({"dead_letter": {"topic": "d"}}, "")["rejects"] == {"topic": "d"}
    assert of_admission({"policy": "shedding", "to": "d"}, "")["rejects"]["topic"] == "d"
    assert of_undecodable("dead_letter", "") == {"rejects": {"undecodable": "dead_letter"}}
    assert of_on_poison("quarantine", "keyed") == {"rejects": {"failing": "quarantine"}}
    assert of_late("dead_letter", "keyed") == {"rejects": {"late": "dead_letter"}}
