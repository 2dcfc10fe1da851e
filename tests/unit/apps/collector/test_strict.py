"""Mode strict: one outcome for each group, whatever comes twice, late or out of order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.apps.collector import Collector, group_of
from headrace.core.imports import load_factory
from headrace.extensions.keyed.settings import FoldSettings
from headrace.keyed import Event
from headrace.testing.keyed import KeyedTest, Produced, Sent, check_reducer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CREATE = "EventGroupCollectorCreate"
_DONE = "EventGroupCollectorEntityDone"
_SUCCESS = "EventGroupCollectorSuccess"
_FAILURE = "EventGroupCollectorFailure"

#: The times to live of a reducer's options, and the default of a group, in milliseconds.
_ORPHANS, _LATE, _TTL = 30_000, 600_000, 30_000

_SETTINGS = FoldSettings(outputs=("outcomes", "rejected", "results.a", "results.b"))


def create(group: str, *expected: str, at: int = 0, **members: Any) -> Sent:
    """Return the event that creates a group."""
    return Sent(group, {"type": _CREATE, "id": group, "expected": [*expected], **members}, at)


def done(group: str, entity: str, at: int = 0, **members: Any) -> Sent:
    """Return the event of an entity that is done."""
    return Sent(group, {"type": _DONE, "id": entity, "group": group, **members}, at)


def clock(at: int) -> Sent:
    """Return an event of no group, which moves the stream's time."""
    return Sent("", {"type": _SUCCESS}, at)


def collector(**options: Any) -> KeyedTest:
    """Return a collector under test, with all outputs."""
    wanted = {"outcomes": "outcomes", "rejected": "rejected", **options}
    return KeyedTest(Collector(**wanted), _SETTINGS)


def outcomes(produced: Sequence[Produced], group: str | None = None) -> list[dict[str, Any]]:
    """Return the outcomes of a group, or of all."""
    found = [each.value for each in produced if each.to == "outcomes"]
    return [each for each in found if group in {None, each["id"]}]


def reasons(produced: Sequence[Produced]) -> list[str]:
    """Return why events were rejected."""
    return [each.value["reason"] for each in produced if each.to == "rejected"]


def nested(depth: int) -> bytes:
    """Return an event that creates a group with a payload of so many levels."""
    event = {"type": _CREATE, "id": "g", "expected": [], "payload": "P"}
    return json.dumps(event).encode().replace(b'"P"', b"[" * depth + b"]" * depth)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (rb'{"type":"%b","id":"g","payload":"\ud800"}', "half of a character"),
        (rb'{"type":"%b","id":"g","expected":["\ud800"]}', "half of a character"),
        (rb'{"type":"%b","id":"\udfff"}', "half of a character"),
        (b'{"type":"%b","id":"g","payload":NaN}', "NaN is no value of JSON"),
        (b'{"type":"%b","id":"g","payload":-Infinity}', "-Infinity is no value of JSON"),
        (b'{"type":"%b","id":"g","payload":"\xff"}', "is no JSON"),
        (nested(200), "nested more than 200 levels"),
        (nested(100_000), "nested more than 200 levels"),
        (b"", "is no JSON"),
        (None, "absent or null"),
    ],
)
def test_an_event_that_no_state_can_hold_is_rejected(value: bytes | None, words: str) -> None:
    """Events come in bytes, and none fails its batch."""
    if value is not None:
        value = value.replace(b"%b", _CREATE.encode())
    wanted = {"outcomes": "outcomes", "rejected": "rejected"}
    test = KeyedTest(
        Collector(**wanted), FoldSettings(outputs=("outcomes", "rejected"), value="bytes")
    )
    (produced,) = test.send((group_of(Event(value, 0, "t", 0, 0)), value, 0))
    assert produced.value["reason"] == "invalid"
    assert words in produced.value["error"]


def test_a_group_of_too_many_bytes_is_closed_by_its_time() -> None:
    """Events beyond the limit are rejected, created or parked, and the group has one outcome."""
    large = "x" * 100_000
    test = collector()
    produced = test.send(create("g", "a", "b", "c", payload=large), done("g", "a", result=large))
    produced += test.send(done("g", "b", result=large), done("g", "c"))
    assert reasons(produced) == ["too_large"]
    assert [each["type"] for each in outcomes(test.send(clock(_TTL + 1)), "g")] == [_FAILURE]
    produced = test.send(*(done("h", f"{n}", at=_TTL + 1, result=large) for n in range(9)))
    assert reasons(produced) == ["too_large"] * 7
    produced = test.send(create("huge", at=_TTL + 1, payload=3 * large))
    assert (reasons(produced), test.state("huge")) == (["too_large"], None)


def test_all_that_json_can_say_is_kept() -> None:
    """Whole Unicode by its escapes, and as many levels as are taken."""
    test = KeyedTest(Collector(), FoldSettings(outputs=("out",), value="bytes"))
    value = rb'{"type":"%b","id":"g","payload":"\ud83d\ude00"}'.replace(b"%b", _CREATE.encode())
    (produced,) = test.send(("g", value, 0))
    assert produced.value["payload"] == "\N{GRINNING FACE}"
    (produced,) = test.send(("h", nested(199).replace(b'"g"', b'"h"'), 0))
    assert json.dumps(produced.value["payload"]) == "[" * 199 + "]" * 199


def test_no_group_is_resolved_before_it_is_created() -> None:
    """Entities that were done before count from its creation on."""
    test = collector()
    test.send(done("g", "a", 1000))
    (outcome,) = outcomes(test.send(create("g", "a", at=5000)))
    assert outcome["created"] == outcome["resolved"] == "1970-01-01T00:00:05Z"


def test_a_group_succeeds_when_its_last_entity_is_done() -> None:
    """With the members of the original, in its order, results by the bytes of their names."""
    test = collector()
    test.send(create("g", "b", "a", at=1000, payload={"z": 1}), done("g", "b", 2500))
    (produced,) = test.send(done("g", "a", 3000, result={"n": 9007199254740993}))
    assert list(produced.value.items()) == [
        ("type", _SUCCESS),
        ("id", "g"),
        ("created", "1970-01-01T00:00:01Z"),
        ("resolved", "1970-01-01T00:00:03Z"),
        ("results", {"a": {"n": 9007199254740993}, "b": None}),
        ("payload", {"z": 1}),
    ]
    assert (produced.to, produced.key, produced.ts) == ("outcomes", "g", 3000)


def test_a_group_fails_with_the_error_of_an_entity() -> None:
    """At once, with the entity and the results so far, the failed one's too."""
    test = collector()
    test.send(create("g", "a", "b", "c"), done("g", "b", 5, result=7))
    (failure,) = outcomes(test.send(done("g", "c", 9, error="no space")))
    assert list(failure)[:4] == ["type", "id", "entity", "error"]
    assert (failure["type"], failure["entity"], failure["error"]) == (_FAILURE, "c", "no space")
    assert failure["results"] == {"b": 7, "c": None}


@pytest.mark.parametrize(
    ("at", "kind"), [(29_999, _SUCCESS), (30_000, _SUCCESS), (30_001, _FAILURE)]
)
def test_an_entity_that_is_done_at_the_deadline_is_in_time(at: int, kind: str) -> None:
    """The deadline is created + ttl in the records' times; a millisecond later is too late."""
    test = collector()
    (outcome,) = outcomes(test.send(create("g", "a"), done("g", "a", at)))
    assert outcome["type"] == kind


@pytest.mark.parametrize(("ttl", "seconds"), [(None, 30), (0, 30), (-5, 30), (7, 7)])
def test_a_group_times_out_with_the_time_that_it_had(ttl: int | None, seconds: int) -> None:
    """The entity is the group's own id, and the text has the effective seconds."""
    test = collector()
    test.send(create("g", "a", ttl=ttl), clock(seconds * 1000))
    assert test.outputs == []
    (failure,) = outcomes(test.send(clock(seconds * 1000 + 1)))
    assert failure["error"] == f"Operation timed out after {seconds} seconds"
    assert (failure["entity"], failure["results"]) == ("g", {})


def test_the_first_of_two_results_counts() -> None:
    """The second is counted in the group's state, and is not rejected."""
    test = collector()
    test.send(create("g", "a", "b"), done("g", "a", result=1), done("g", "a", result=2))
    assert test.state("g")["counts"] == {"duplicate": 1}
    (outcome,) = outcomes(test.send(done("g", "b")))
    assert outcome["results"] == {"a": 1, "b": None}
    assert reasons(test.outputs) == []


def test_an_unexpected_entity_cannot_end_a_group() -> None:
    """An error and a result of it are rejected, with the event itself."""
    test = collector()
    stranger = done("g", "x", 4, error="boo")
    (rejected,) = test.send(create("g", "a"), stranger)
    assert rejected.value == {
        "type": "EventGroupCollectorRejected",
        "id": "g",
        "reason": "not_expected",
        "error": "Entity 'x' is not expected by group 'g'",
        "at": "1970-01-01T00:00:00Z",
        "event": stranger.value,
    }
    assert test.state("g")["counts"] == {"not_expected": 1}


def test_a_group_without_entities_succeeds_at_once() -> None:
    """A group is complete when no entity is open."""
    (outcome,) = outcomes(collector().send(create("g")))
    assert (outcome["type"], outcome["results"]) == (_SUCCESS, {})


def test_an_entity_that_is_done_before_its_group_is_created_counts() -> None:
    """The result is parked, and taken in order once the group is created."""
    test = collector()
    test.send(done("g", "a", 1, result=1), done("g", "a", 2, result=2), done("g", "x", 3))
    assert outcomes(test.outputs) == []
    test.send(create("g", "a", "b", at=9))
    assert test.state("g")["results"] == {"a": 1}
    assert test.state("g")["counts"] == {"duplicate": 1, "not_expected": 1}


def test_a_result_parked_for_too_long_is_rejected() -> None:
    """The words are the original's; later results stay parked."""
    test = collector()
    test.send(done("g", "a", 0), done("g", "b", 10_000))
    (rejected,) = test.send(clock(_ORPHANS + 1))
    assert rejected.value["reason"] == "unknown_group"
    assert rejected.value["error"] == "Entity 'a' got unknown group id 'g'"
    (outcome,) = outcomes(test.send(create("g", "b", at=_ORPHANS + 2)))
    assert outcome["type"] == _SUCCESS
    test.send(done("h", "a", 50_000), clock(50_000 + _ORPHANS + 1))
    assert test.state("h") is None


def test_a_closed_group_rejects_late_results_until_it_is_forgotten() -> None:
    """After late_ttl the same id makes another group."""
    test = collector()
    test.send(create("g", "a"), done("g", "a", 100))
    assert reasons(test.send(done("g", "a", 200, error="boo"))) == ["late"]
    assert outcomes(test.send(create("g", "a", at=300))) == []
    assert test.state("g")["counts"] == {"late": 1, "duplicate": 1}
    test.send(clock(100 + _LATE + 1))
    assert test.state("g") is None
    again = test.send(create("g", "a", at=700_000), done("g", "a", 700_001))
    assert len(outcomes(again)) == 1


def test_a_group_that_is_created_again_goes_on_as_it_was() -> None:
    """With the same members that is a repetition; with others it is rejected as a conflict."""
    test = collector()
    test.send(create("g", "a", "b", payload=1), done("g", "a"))
    test.send(create("g", "b", "a", "a", at=20_000, payload=1, sender="again"))
    assert reasons(test.send(create("g", "q", at=20_001, payload=1))) == ["conflict"]
    assert test.state("g")["counts"] == {"duplicate": 1, "conflict": 1}
    (outcome,) = outcomes(test.send(done("g", "b", 20_002)))
    assert outcome["created"] == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("members", "answers", "kind", "after"),
    [
        ({"need": 2}, ["a", "!b", "c", "d"], _SUCCESS, 3),
        ({"need": 2}, ["!a", "!b", "!c", "d"], _FAILURE, 3),
        ({"need": 2, "fail_fast": False}, ["!a", "!b", "!c", "d"], _FAILURE, 4),
        ({"fail_fast": False}, ["!a", "b", "c", "d"], _FAILURE, 4),
        ({"need": 1}, ["!a", "!b", "!c", "d"], _SUCCESS, 4),
    ],
)
def test_a_quorum_decides(
    members: dict[str, Any], answers: list[str], kind: str, after: int
) -> None:
    """A group closes when enough have succeeded or can no more, without fail_fast when all
    answered.
    """
    test = collector()
    test.send(create("g", "a", "b", "c", "d", **members))
    closed = 0
    for number, answer in enumerate(answers, 1):
        error = "broken" if answer.startswith("!") else ""
        closed = closed or number * len(outcomes(test.send(done("g", answer[-1], error=error))))
    (outcome,) = outcomes(test.outputs)
    failed = [answer[1] for answer in answers[:after] if answer.startswith("!")]
    assert (outcome["type"], closed) == (kind, after)
    assert outcome["errors"] == dict.fromkeys(failed, "broken")


_ROUTED = {
    "onsuccess": {"topic": "results.a", "payload": {"mine": 1}},
    "onfailure": {"topic": "results.b"},
}


@pytest.mark.parametrize(
    ("error", "to", "payload"), [("", "results.a", {"mine": 1}), ("boo", "results.b", 5)]
)
def test_an_outcome_goes_also_where_its_group_wants_it(
    error: str, to: str, payload: object
) -> None:
    """With the handler's payload, or the group's; a handler of the other outcome gets nothing."""
    test = collector(routes=[r"^results\."])
    test.send(create("g", "a", handler=_ROUTED, payload=5), done("g", "a", error=error))
    main, routed = test.outputs
    assert (main.to, routed.to) == ("outcomes", to)
    assert routed.value == main.value | {"payload": payload}


def test_a_topic_that_no_route_admits_gets_nothing() -> None:
    """The group works, and the rejection names the topic, as events do not choose topics freely."""
    test = collector(routes=[r"^results\.a$"])
    test.send(create("g", "a", handler=_ROUTED))
    assert reasons(test.outputs) == ["not_routed"]
    test.send(done("g", "a", error="boo"))
    assert [each.to for each in test.outputs] == ["rejected", "outcomes"]
    assert "'results.b' of onfailure" in test.outputs[0].value["error"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "absent or null; it has to be an object"),
        ([1], "the event is a list"),
        ({}, "Unable to parse '' into"),
        ({"type": "Nope"}, "Unable to parse 'Nope' into"),
        ({"type": _CREATE}, "id is absent or null; it has to be a text"),
        ({"type": _CREATE, "id": ""}, "id is empty"),
        ({"type": _DONE, "id": "a", "group": 7}, "group is 7; it has to be a text"),
        ({"type": _DONE, "group": "g"}, "id is absent"),
        ({"type": _DONE, "id": "a", "group": "g", "error": {}}, "error is an object"),
        ({"type": _CREATE, "id": "g", "expected": "a"}, "expected is a text"),
        ({"type": _CREATE, "id": "g", "expected": [1]}, "a list of texts"),
        ({"type": _CREATE, "id": "g", "ttl": 1.5}, "ttl is 1.5; it has to be a whole number"),
        ({"type": _CREATE, "id": "g", "ttl": True}, "ttl is true"),
        ({"type": _CREATE, "id": "g", "expected": ["a"], "need": 2}, "need is 2, and 1 are"),
        ({"type": _CREATE, "id": "g", "expected": ["a"], "need": 0}, "need is 0"),
        ({"type": _CREATE, "id": "g", "fail_fast": 1}, "fail_fast is 1; it has to be true"),
        ({"type": _CREATE, "id": "g", "handler": {"onsuccess": {"payload": 1}}}, "topic is absent"),
        ({"type": _CREATE, "id": "other"}, "headrace.apps.collector:group_of"),
        (b"{", "the event is no JSON"),
    ],
)
def test_an_event_that_cannot_be_taken_is_rejected(value: Any, words: str) -> None:
    """The rejection says which member it is, what it has, and what it has to be."""
    reducer = Collector(outcomes="outcomes", rejected="rejected")
    state, (rejected,), timers = reducer("g", None, [Event(value, 0, "t", 0, 0)], 0)
    assert (state, timers, rejected.value["reason"]) == (None, {}, "invalid")
    assert words in rejected.value["error"]


def test_records_of_the_collector_itself_are_skipped() -> None:
    """The collector may write to the topic that it reads."""
    test = collector()
    test.send(create("g", "a"), done("g", "a"), done("g", "a"))
    own = [Sent(group_of(Event(each.value, 0, "t", 0, 0)), each.value, 0) for each in test.outputs]
    assert len(own) == 2
    assert test.send(*own) == []


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"type": _CREATE, "id": "g"}, "g"),
        ({"type": _DONE, "id": "a", "group": "g"}, "g"),
        ({"type": _DONE, "id": "a"}, ""),
        ({"type": _DONE, "group": 7}, ""),
        ({"type": _SUCCESS, "id": "g"}, ""),
        (b'{"TYPE":"EventGroupCollectorCreate","Id":"g"}', "g"),
        (f'{{"type":"{_DONE}","GROUP":"g\\ud800"}}', "g\ufffd"),
        (b"{", ""),
        (b'{"type":7}', ""),
        (None, ""),
        ([], ""),
    ],
)
def test_the_key_of_an_event_is_its_group(value: Any, key: str) -> None:
    """Decoded, as text or as bytes; what has none has the empty key, and nothing raises."""
    assert group_of(Event(value, 0, "t", 0, 0)) == key


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ("rfc3339", "2020-07-17T22:36:26Z"),
        ("micros", "2020-07-17T22:36:26.402000Z"),
        ("go", "2020-07-17 22:36:26.402 +0000 UTC"),
    ],
)
def test_moments_are_written_as_the_options_say(times: str, text: str) -> None:
    """In UTC; a record has milliseconds."""
    (outcome,) = outcomes(collector(times=times).send(create("g", at=1_595_025_386_402)))
    assert outcome["created"] == text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "lax"}, "mode is 'lax'; it has to be strict or compat"),
        ({"times": "iso"}, "one of rfc3339, micros, go"),
        ({"rejected": "r"}, "outcomes is not given, and rejected is"),
        ({"routes": ["^a"]}, "outcomes is not given, and routes is"),
        ({"outcomes": "o", "rejected": "o"}, "both 'o'"),
        ({"outcomes": "o", "routes": "^a"}, "a list of regular expressions"),
        ({"outcomes": "o", "routes": ["("]}, "'\\(' is no regular expression"),
        ({"orphan_ttl": 30}, "orphan_ttl is 30; it has to be a duration such as 30s"),
        ({"late_ttl": "soon"}, "late_ttl is 'soon'"),
        ({"mode": "compat", "late_ttl": "1m"}, "mode: compat has none"),
        ({"mode": "compat", "outcomes": "o", "routes": ["^a"]}, "mode: compat has none"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, Any], words: str) -> None:
    """With its value and what it has to be."""
    with pytest.raises(ValueError, match=words):
        load_factory("headrace.apps.collector:Collector", options)(**options)


# --- properties ---------------------------------------------------------------------------------

_GROUPS = st.sampled_from("gh")
_ENTITIES = st.sampled_from("abcx")
_ERRORS = st.sampled_from(["", "", "", "no space"])
_BODIES = st.fixed_dictionaries(
    {"ttl": st.sampled_from([None, 1, 40])},
    optional={"need": st.integers(1, 3), "fail_fast": st.booleans(), "payload": st.integers(0, 1)},
)


@st.composite
def events(draw: st.DrawFn) -> Sent:
    """Draw an event at any time, so that many are late."""
    group, at = draw(_GROUPS), draw(st.integers(0, 100_000))
    if draw(st.integers(0, 3)) == 0:
        return create(group, "a", "b", "c", at=at, **draw(_BODIES))
    return done(group, draw(_ENTITIES), at, error=draw(_ERRORS), result=draw(st.integers(0, 9)))


def _generations(test: KeyedTest, facts: Sequence[Sent]) -> Iterator[tuple[str, int]]:
    """Send facts one by one; yield the group and the effective ttl of each that begins."""
    for fact in facts:
        test.send(clock(fact.ts))  # what is due fires before
        before = test.state(fact.key)
        test.send(fact)
        if fact.value["type"] == _CREATE and (before is None or before["phase"] == "parked"):
            yield fact.key, fact.value.get("ttl") or 30


@settings(deadline=None, max_examples=60)
@given(facts=st.lists(events(), min_size=1, max_size=40), late_ttl=st.sampled_from(["5s", "10m"]))
def test_each_group_has_exactly_one_outcome(facts: list[Sent], late_ttl: str) -> None:
    """A group has one outcome for each creation, with repeated, late, early and missing events."""
    test = collector(late_ttl=late_ttl)
    begun = list(_generations(test, facts))
    test.send(clock(10**7))
    found = outcomes(test.outputs)
    assert sorted(each["id"] for each in found) == sorted(group for group, _ in begun)
    for each in found:
        assert each["results"].keys() <= {"a", "b", "c"}
        if each["type"] == _FAILURE and each["entity"] == each["id"]:
            allowed = {f"Operation timed out after {ttl} seconds" for _, ttl in begun}
            assert each["error"] in allowed
    test.send(clock(2 * 10**7))
    assert test.states() == {}


@settings(deadline=None, max_examples=40)
@given(facts=st.lists(events(), min_size=1, max_size=30), seed=st.integers(0, 1000))
def test_outcomes_do_not_depend_on_where_batches_are_cut(facts: list[Sent], seed: int) -> None:
    """A restart between any two events: the same outcomes, rejections and states."""
    reducer = Collector(outcomes="outcomes", rejected="rejected", late_ttl="5s")
    check_reducer(reducer, facts, settings=_SETTINGS, runs=4, seed=seed)


@settings(deadline=None, max_examples=60)
@given(
    answers=st.lists(st.tuples(_ENTITIES, _ERRORS, st.integers(0, 60_000)), max_size=12),
    created=st.integers(0, 20_000),
)
def test_answers_in_time_decide_the_outcome(
    answers: list[tuple[str, str, int]], created: int
) -> None:
    """Answers count in the order of their times, with the group's own event anywhere among them.

    The first answers of the three that are expected, up to the deadline, decide.
    """
    facts = [done("g", entity, at, error=error) for entity, error, at in answers]
    ordered = sorted([create("g", "a", "b", "c", at=created), *facts], key=lambda fact: fact.ts)
    test = collector(orphan_ttl="1h")
    test.send(*ordered)
    test.send(clock(10**6))
    (outcome,) = outcomes(test.outputs)
    first: dict[str, str] = {}
    for fact in ordered:
        if fact.value["type"] == _DONE and fact.ts <= created + _TTL:
            first.setdefault(fact.value["id"], fact.value["error"])
    errors = [entity for entity in first if entity != "x" and first[entity]]
    if errors:
        assert (outcome["type"], outcome["entity"]) == (_FAILURE, errors[0])
    elif first.keys() >= {"a", "b", "c"}:
        assert outcome["type"] == _SUCCESS
    else:
        assert outcome["error"] == "Operation timed out after 30 seconds"
    assert json.dumps(outcome["results"], sort_keys=True) == json.dumps(outcome["results"])
