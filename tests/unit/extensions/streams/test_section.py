"""The topics of a topology's channels, by their sections."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from headrace.config import ChannelConfig, Config
from headrace.config.derived import continued, written_topics
from headrace.config.models.processor import TopicByKey
from headrace.config.problems import problems
from headrace.core.clock import Deadline
from headrace.core.errors import UsageError
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.names import BY_KEY_SETTINGS
from headrace.extensions.keyed.runtime.checkpoints import Checkpoints
from headrace.extensions.streams.rows import field
from headrace.extensions.streams.section import StreamsProcessorConfig
from headrace.extensions.streams.topology import Topology
from headrace.ops.admin.commands import _channel as named_channel
from headrace.ops.admin.state import _absent as absent
from headrace.ops.doctor.acls import needed_acls
from headrace.ops.state.repartition import repartition
from headrace.ops.topics.commands import Use, needed_topics
from headrace.streams import Field, Row, count, key, last
from tests.unit.extensions.streams import programs

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE = __name__

calls: list[int] = []


def top_pages() -> Topology:
    """Return a topology of three channels, and note the call."""
    calls.append(1)
    return programs.top_pages()


def sold() -> Topology:
    """Return a join by a foreign key, of two channels."""
    return programs.sold()


def mixed() -> Topology:
    """Return a topology whose channel reads its input again by another key."""
    app = Topology()
    orders: Any = app.stream("orders", programs.Order)
    orders.merge(orders.key_by(programs.Order.id, name="again")).to("both")
    return app


def channels(code: str, **section: Any) -> Mapping[str, ChannelConfig]:
    """Return the channels that a topology of this module becomes."""
    topology = {"code": f"{_HERE}:{code}", "group": "shop", **section}
    return Config.model_validate({"instance_id": "one", "topologies": {"t": topology}}).channels


def processor(channel: ChannelConfig) -> StreamsProcessorConfig:
    """Return the section of a channel's processor."""
    assert isinstance(channel.processor, StreamsProcessorConfig)
    return channel.processor


def test_a_channel_names_the_topics_that_it_writes() -> None:
    """Those by key have the settings of the section, and the rest are outputs."""
    internal = {"create": False, "partitions": 6, "replication_factor": 3}
    made = channels("top_pages", channel={"processor": {"internal": internal}})
    middle, last = made["t.pages"], made["t.top"]
    by_key = TopicByKey("shop.top.by-key", ("shop.pages.by-key",), False, 3, 6, BY_KEY_SETTINGS)
    assert processor(middle).topics_by_key(middle) == (by_key,)
    assert (processor(middle).outputs(middle), processor(last).outputs(last)) == (
        (),
        ("top-pages",),
    )
    assert not processor(last).topics_by_key(last)
    assert written_topics(middle) == {"shop.top.by-key", "shop.pages.by-key.state"}
    assert written_topics(last) == {"top-pages", "shop.top.by-key.state"}
    assert continued("t.top", made) == {"t.pages": ["shop.top.by-key"]}


def test_each_side_of_a_join_by_a_foreign_key_makes_both_topics_and_writes_one() -> None:
    """They have the partitions of what their readers read, whatever those of other topics are."""
    internal = {"partitions": 6}
    made = channels("sold", channel={"processor": {"internal": internal}})
    subscribe, respond = (
        TopicByKey(f"shop.sold.{name}", (source,), True, None, None, BY_KEY_SETTINGS)
        for name, source in (("subscribe", "buyers"), ("respond", "sales"))
    )
    left, right = made["t.sales"], made["t.buyers"]
    assert processor(left).topics_by_key(left) == (subscribe,)
    assert processor(right).topics_by_key(right) == (respond,)
    assert processor(left).made_topics(left) == (subscribe, respond)
    assert processor(right).made_topics(right) == (respond, subscribe)
    assert (processor(left).outputs(left), processor(right).outputs(right)) == (("sold",), ())
    assert written_topics(left) == {"shop.sold.subscribe", "sold", "shop.sales.sales.state"}
    assert processor(left).purged_topics(left) == ("shop.sold.respond",)
    assert processor(right).purged_topics(right) == ("shop.sold.subscribe",)
    assert processor(left).stores != processor(right).stores
    notes = [*processor(left).notes(left)]
    assert "operator table_join 'sold', by shop.sold.subscribe and shop.sold.respond" in notes


def shared() -> Topology:
    """Return a lookup in a table that each member has whole."""
    app = Topology()
    buyers = app.shared_table("buyers", programs.Buyer, name="people")
    sales = app.stream("sales", programs.Sale)
    sales.lookup(
        buyers,
        programs.Sold,
        name="sold",
        kind="inner",
        on=programs.Sale.buyer,
        cents=programs.Sale.cents,
        who=programs.Buyer.name,
    ).to("sold")
    return app


def test_the_topic_of_a_shared_table_is_read_whole_and_not_by_tasks() -> None:
    """It is needed and may be read, and has no part in offsets, partitions or state."""
    made = channels("shared")
    (channel,) = made.values()
    assert channel.topics == ("sales",)
    assert processor(channel).shared_topics(channel) == ("buyers",)
    assert processor(channel).stores is None
    needed = {each.name: each.use for each in needed_topics(made)}
    assert needed["buyers"] is Use.INPUT
    config = Config.model_validate(
        {"instance_id": "one", "topologies": {"t": {"code": f"{_HERE}:shared", "group": "shop"}}}
    )
    reads = [each.name for each in needed_acls(config) if "Read" in each.operations]
    assert "buyers" in reads


def test_permissions_of_a_join_by_a_foreign_key_are_those_of_each_side() -> None:
    """Each side may make both topics, and write one of them."""
    config = Config.model_validate(
        {"instance_id": "one", "topologies": {"t": {"code": f"{_HERE}:sold", "group": "shop"}}}
    )
    found = {
        (each.name, operation)
        for each in needed_acls(config)
        for operation in each.operations
        if each.name.startswith("shop.sold.")
    }
    assert found == {
        (f"shop.sold.{name}", operation)
        for name in ("subscribe", "respond")
        for operation in ("Create", "Read", "Write", "Delete", "DescribeConfigs")
    }


def test_the_code_is_called_once_for_all_channels() -> None:
    """Topics are those of the plan that the channels were made of."""
    calls.clear()
    made = channels("top_pages")
    assert [written_topics(each) for each in made.values()]
    assert len(calls) == 1


def test_a_channel_that_is_written_out_has_the_topics_of_its_part() -> None:
    """Without the section of its topology the code is called when it is asked for them."""
    (one, *_) = channels("top_pages").values()
    section = processor(one).model_dump(mode="python", exclude_defaults=True)
    alone = StreamsProcessorConfig.model_validate(section)
    assert alone == processor(one)
    assert alone.topics_by_key(one) == processor(one).topics_by_key(one)


@pytest.mark.parametrize(
    ("code", "internal", "purged"),
    [
        ("top_pages", {}, {"t.pages": ("shop.pages.by-key",), "t.top": ("shop.top.by-key",)}),
        ("top_pages", {"purge_input": None}, {}),
        ("mixed", {}, {"t.orders": ("shop.again.by-key",)}),
        ("mixed", {"purge_input": "5s"}, {"t.orders": ("shop.again.by-key",)}),
    ],
)
def test_only_topics_by_key_are_purged(
    code: str, internal: dict[str, Any], purged: dict[str, tuple[str, ...]]
) -> None:
    """Others may read the inputs of a topology, whichever channel reads them, and what is asked."""
    made = channels(code, channel={"processor": {"internal": internal}})
    found = {name: processor(each).purged_topics(each) for name, each in made.items()}
    assert {name: topics for name, topics in found.items() if topics} == purged


def test_records_of_other_topics_are_not_deleted() -> None:
    """Those that are named are purged up to the offsets of both stores, and no others."""
    deleted: dict[TopicPartition, int] = {}
    partitions = [TopicPartition(topic, 0) for topic in ("orders", "shop.again.by-key")]
    assignments = [
        SimpleNamespace(partition=each, identity=each.topic, committed=7, is_current=lambda: True)
        for each in partitions
    ]
    stored = SimpleNamespace(offsets={each.topic: 5 for each in partitions})
    parts: Any = SimpleNamespace(
        state=SimpleNamespace(progress=lambda _: stored), store=None, sink=None
    )
    held: Any = SimpleNamespace(restored_assignments=lambda: assignments)
    catalog: Any = SimpleNamespace(delete_before=lambda offsets, _: deleted.update(offsets))
    nothing: Any = None
    checkpoints = Checkpoints(parts, held, nothing, nothing, catalog, nothing)
    checkpoints.purge(("shop.again.by-key",), Deadline.after(1))
    assert deleted == {partitions[1]: 5}


def refusals(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is wrong with a configuration: where, and the sentence."""
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"instance_id": "one", **document})
    return [(".".join(map(str, steps)), text) for steps, text in problems(caught.value, Config)]


TOPOLOGY = {"code": f"{_HERE}:top_pages", "group": "shop"}


@pytest.mark.parametrize("given", ["x", [1], 5])
@pytest.mark.parametrize("where", ["channel", "channels"])
def test_a_processor_that_is_no_mapping_is_refused(where: str, given: Any) -> None:
    """It is named where it stands."""
    section: Any = {"processor": given}
    section = {"pages": section} if where == "channels" else section
    ((steps, text),) = refusals({"topologies": {"t": {**TOPOLOGY, where: section}}})
    assert steps == f"topologies.t.{where}{'.pages' if where == 'channels' else ''}.processor"
    assert "a mapping of its keys is expected" in text


@pytest.mark.parametrize(
    "given",
    [{"type": "arrow"}, {"code": "a:b"}, {"part": "pages"}, {"stores": "a:1"}, {"options": {}}],
)
def test_keys_of_a_processor_that_the_topology_decides_are_refused(given: dict[str, Any]) -> None:
    """They would have no effect."""
    ((steps, text),) = refusals(
        {"topologies": {"t": {**TOPOLOGY, "channels": {"pages": {"processor": given}}}}}
    )
    assert steps == f"topologies.t.channels.pages.processor.{next(iter(given))}"
    assert "leave it out" in text


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"group": "other"}, "group"),
        ({"topics": ["other"]}, "topics"),
        (
            {"processor": {"type": "arrow", "reducer": "a:b"}, "sink": {"type": "kafka"}},
            "processor.type",
        ),
    ],
)
def test_a_channel_with_the_name_of_a_topology_s_is_refused(
    changed: dict[str, Any], where: str
) -> None:
    """Else a part of the topology would not run; the same channel written out may stand there."""
    made = channels("top_pages")["t.pages"]
    written = made.model_dump(mode="json", exclude_unset=True)
    Config.model_validate(
        {"instance_id": "one", "topologies": {"t": TOPOLOGY}, "channels": {"t.pages": written}}
    )
    written |= changed
    found = refusals({"topologies": {"t": TOPOLOGY}, "channels": {"t.pages": written}})
    assert f"channels.t.pages.{where}" in [steps for steps, _ in found]
    assert "topology t becomes a channel of this name" in dict(found)[f"channels.t.pages.{where}"]


def test_two_topologies_that_become_one_channel_are_refused() -> None:
    """A name with a dot may be that of another topology's part."""
    sections = {
        name: {"code": f"{_HERE}:counts_of", "group": name, "options": {"topic": topic}}
        for name, topic in (("t", "pages.words"), ("t.pages", "words"))
    }
    found = refusals({"topologies": sections})
    assert [steps for steps, _ in found] == ["channels.t.pages.words"]


def counts_of(topic: str) -> Topology:
    """Return a count of words from a topic."""
    app = Topology()
    app.stream(topic, programs.Word).group_by(key, name="counts").agg(
        programs.Counted, word=key, n=count()
    ).updates().to("counted")
    return app


def failing(kind: str) -> Topology:
    """Return no topology, in one way or another."""
    match kind:
        case "empty":
            return Topology()
        case "operator":
            Topology().stream("a/b", programs.Order)
        case "interrupt":
            raise KeyboardInterrupt
    print("to standard output")  # noqa: T201 - what is looked for
    return top_pages()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("empty", "does not fit together: the topology is empty; begin with app.stream"),
        ("operator", "fails: stream 'a/b': 'a/b' is no name of a topic"),
        ("interrupt", "fails: KeyboardInterrupt"),
    ],
)
def test_code_without_a_topology_says_what_is_wrong(kind: str, text: str) -> None:
    """The sentence goes on from the name of the code."""
    section = {**TOPOLOGY, "code": f"{_HERE}:failing", "options": {"kind": kind}}
    ((steps, said),) = refusals({"topologies": {"t": section}})
    assert (steps, said.partition(", which ")[2].startswith(text)) == ("topologies.t.code", True)


def test_output_of_code_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is that of commands, such as a configuration that is shown."""
    channels("failing", options={"kind": "prints"})
    assert capsys.readouterr() == ("", "to standard output\n")


def test_more_partitions_split_rows_of_stores_alone() -> None:
    """A part without a store goes on; the rows of one that reads topics by key can be moved."""
    made = channels("top_pages")
    parts = {name: processor(each) for name, each in made.items()}
    assert {name: each.has_fixed_keys for name, each in parts.items()} == {
        "t.clicks": True,
        "t.pages": False,
        "t.top": False,
    }
    assert "headrace streams reshard t " in parts["t.pages"].split_step(made["t.pages"])
    topology = {"code": f"{programs.__name__}:enrich", "group": "shop"}
    config = Config.model_validate({"instance_id": "one", "topologies": {"t": topology}})
    (mixed,) = (each for each in config.channels.values() if len(each.topics) > 1)
    assert "give topology t another group" in processor(mixed).split_step(mixed)


def test_repartition_refuses_a_part_with_stores() -> None:
    """The keys of its rows would move them to wrong partitions."""
    config = Config.model_validate({"instance_id": "one", "topologies": {"t": TOPOLOGY}})
    with pytest.raises(UsageError, match=r"t.pages is of a topology.*Nothing was moved"):
        repartition(config, "t.pages", partitioner=None, rewrite=False)


def test_state_list_finds_the_channels_of_topologies() -> None:
    """The only one need not be named, and of several one has to be."""

    def ask(*processors: str) -> str:
        found = [{"name": f"c{n}", "processor": each} for n, each in enumerate(processors)]
        client: Any = SimpleNamespace(get=lambda _, **__: {"channels": found})
        return named_channel(client, None, None, with_state=True)

    assert ask("simple", "streams") == "c1"
    without, kept = ({"operators": [{"store": store}]} for store in (None, "windows"))
    parts = [
        {"name": "t.in", "processor": "streams", "state_by_key": {"operators": []}},
        {"name": "t.lookup", "processor": "streams", "state_by_key": without},
        {"name": "t.pages", "processor": "streams", "state_by_key": kept},
    ]
    several: Any = SimpleNamespace(get=lambda _, **__: {"channels": parts})
    assert named_channel(several, None, None, with_state=True) == "t.pages"
    with pytest.raises(UsageError, match="several channels; name one of c0, c1"):
        ask("streams", "keyed")


def test_a_row_that_is_not_there_says_how_rows_are_called() -> None:
    """The partition of a row cannot be told from its key."""
    found: Any = SimpleNamespace(name="t.pages", config=channels("top_pages")["t.pages"])
    error = absent(found, "/a", None)
    assert "no row /a in the partitions of this process" in error.problem.message
    assert "STORE/BEGIN/KEY" in (error.problem.next_step or "")


class Blob(Row):
    word: Field[str]
    raw: Field[bytes]


class Odd(Row):
    word: Field[str]
    n: Field[int] = field(name="a `name`")


def unfit(rows: str) -> Topology:
    """Return a topology with an aggregate whose rows are of a class of this module."""
    app = Topology()
    raw: Any = app.stream("raw", Raw, codec="bytes").group_by(key, name="words")
    made: Any = {"Blob": {"raw": last(Raw.raw)}, "Odd": {"n": count()}}[rows]
    table = raw.agg(globals()[rows], word=key, **made)
    table.updates().select(Word, word=key).to("words")
    return app


class Raw(Row):
    raw: Field[bytes]


class Word(Row):
    word: Field[str]


@pytest.mark.parametrize(
    ("rows", "text"), [("Blob", "Blob.raw, which has bytes"), ("Odd", "Odd.n")]
)
def test_rows_that_no_table_takes_are_refused(rows: str, text: str) -> None:
    """The field is named where the code is."""
    sink = {"type": "sql", "url": "sqlite:///x.db", "table": "w", "mode": "upsert", "key": ["word"]}
    section = {"code": f"{_HERE}:unfit", "group": "g", "options": {"rows": rows}}
    ((steps, said),) = refusals({"topologies": {"t": {**section, "tables": {"words": sink}}}})
    assert steps == "topologies.t.code"
    assert f"which has aggregate 'words' with {text}" in said


def test_a_sink_that_writes_records_is_no_table() -> None:
    """Rows of an aggregate are not those of a topic, which the code writes to."""
    sink = {"type": "kafka", "topic": "pages"}
    found = refusals({"topologies": {"t": {**TOPOLOGY, "tables": {"pages": sink}}}})
    assert [steps for steps, _ in found] == ["topologies.t.tables.pages.type"]
    assert ".to(topic)" in found[0][1]
