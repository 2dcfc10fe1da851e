"""Dividing the partitions of topics by key: rows go where their keys belong, and nowhere else."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.errors import UsageError
from headrace.extensions.keyed.api import at_event
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.streams.aggregates import count, total
from headrace.extensions.streams.expressions import key, window_start
from headrace.extensions.streams.rows import Field, Row
from headrace.extensions.streams.topology import Topology
from headrace.extensions.streams.windows import hopping, session, sliding, tumbling
from headrace.ops.streams.reshard import Division
from headrace.testing.keyed import MemoryStore
from headrace.testing.streams import InMemoryPart, TopicRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.extensions.streams.plan import Channel, Plan


class Click(Row):
    url: Field[str]
    n: Field[int]


class Pages(Row):
    url: Field[str]
    begin: Field[int]
    n: Field[int]
    sum: Field[int]


class View(Row):
    url: Field[str]
    m: Field[int]


class Pair(Row):
    n: Field[int | None]
    m: Field[int | None]


class Seen(Row):
    url: Field[str]
    n: Field[int]


WINDOWS: dict[str, Any] = {
    "tumbling": tumbling("10s", grace="1h"),
    "hopping": hopping("10s", every="4s", grace="1h"),
    "sliding": sliding("3s", grace="1h"),
    "session": session("2s", grace="1h"),
}


def aggregated(windows: Any) -> Topology:
    """Return a topology that counts clicks of urls in windows."""
    app = Topology()
    grouped = app.stream("clicks", Click).group_by(Click.url, name="pages").window(windows)
    made = grouped.agg(Pages, url=key, begin=window_start, n=count(), sum=total(Click.n))
    made.final().to("out")
    return app


def joined() -> Topology:
    """Return a topology that joins clicks and views of urls."""
    app = Topology()
    clicks = app.stream("clicks", Click).key_by(Click.url, name="pages")
    views = app.stream("views", View).key_by(View.url, name="looks")
    clicks.join(
        views, Pair, within="4s", grace="1h", kind="outer", name="pairs", n=Click.n, m=View.m
    ).to("out")
    return app


def reduced() -> Topology:
    """Return a topology whose reducer tells the clicks of a url some time after the last one."""

    def tell(url: str, state: Any, facts: Any, now: int) -> Any:
        del now
        (fact,) = facts
        if not hasattr(fact, "value"):
            return None, [Seen(url=url, n=state)], {}
        return (state or 0) + 1, [], {"quiet": at_event(fact.ts + 3_000)}

    app = Topology()
    app.stream("clicks", Click).key_by(Click.url, name="pages").reduce(
        tell, name="seen", rows=Seen
    ).to("out")
    return app


def by_key_part(plan: Plan) -> Channel:
    """Return the part that reads the topics by key."""
    (part,) = (each for each in plan.channels if each.stores)
    return part


def share(records: Sequence[TopicRecord], partitions: int) -> list[list[TopicRecord]]:
    """Return the records of each partition, as they are by key."""
    found: list[list[TopicRecord]] = [[] for _ in range(partitions)]
    for record in records:
        assert record.key is not None
        found[partition_of(record.key, partitions)].append(record)
    return found


def divided(plan: Plan, parts: Sequence[InMemoryPart], after: int) -> list[InMemoryPart]:
    """Return parts on so many partitions, with the rows of others."""
    part, before = by_key_part(plan), len(parts)
    stores = [MemoryStore() for _ in range(after)]
    division = Division.of(plan, part, before, after)
    for number, each in enumerate(parts):
        rows = {key: KeyRow(value) for key, value in each.rows().items()}
        changes = [(number, name, row) for name, row in rows.items()]
        for moved in [*changes, *division.move(number, rows)]:
            place = PartitionKey(0, moved[1])
            (known,) = stores[moved[0]].get_many([place])
            stores[moved[0]].put([ChangedRows.of([(place, RowChange(known, moved[2]))])])
    return [InMemoryPart(plan, part, store=store) for store in stores]


def run_all(parts: Sequence[InMemoryPart], records: Sequence[TopicRecord]) -> None:
    """Run records by key in the parts that have their partitions."""
    for run, own in zip(parts, share(records, len(parts)), strict=True):
        run.run(own)


def told(parts: Sequence[InMemoryPart]) -> list[tuple[bytes, bytes, int]]:
    """Return what parts wrote: key, value, time."""
    written = [each for run in parts for each in run.written.get("out", ())]
    return [(each.key or b"", each.value or b"", each.time) for each in written]


def click(url: bytes, time: int) -> TopicRecord:
    """Return a record by key."""
    return TopicRecord("g.pages.by-key", url, b'{"url":"%b","n":1}' % url, time)


def view(url: bytes, time: int) -> TopicRecord:
    """Return a record by key of the other topic."""
    return TopicRecord("g.looks.by-key", url, b'{"url":"%b","m":2}' % url, time)


PROGRAMS: dict[str, Any] = {
    **{kind: partial(aggregated, windows) for kind, windows in WINDOWS.items()},
    "join": joined,
    "reduce": reduced,
}


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=12)
@given(data=st.data())
def test_a_division_anywhere_changes_no_output(name: str, data: st.DataObject) -> None:
    """Wherever in the records it is: each window, pair and timer once, with all of its records."""
    plan = PROGRAMS[name]().plan("demo", "g")
    part = by_key_part(plan)
    before = data.draw(st.integers(1, 3))
    after = before * data.draw(st.integers(2, 3))
    kinds = [click, view] if name == "join" else [click]
    steps = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(kinds),
                st.sampled_from([b"a", b"b", b"c", b"d/e"]),
                st.integers(0, 2_000),
            ),
            max_size=25,
        )
    )
    time, sent = 0, []
    for kind, url, step in steps:
        time += step
        sent.append(kind(url, time))
    cut = data.draw(st.integers(0, len(sent)))
    urls = sorted({record.key for record in sent if record.key is not None})
    over = [kind(url, time + 10 * 3_600_000) for url in urls for kind in kinds]
    parts = [InMemoryPart(plan, part) for _ in range(before)]
    run_all(parts, sent[:cut])
    more = divided(plan, parts, after)
    run_all(more, [*sent[cut:], *over])
    found = sorted([*told(parts), *told(more)])
    run_all(parts, [*sent[cut:], *over])
    assert found == sorted(told(parts))


def test_a_window_that_was_told_is_not_told_again() -> None:
    """A record of it is late where its key belongs now, as it was before."""
    plan = aggregated(tumbling("10s")).plan("demo", "g")
    url = next(b"%d" % number for number in range(99) if partition_of(b"%d" % number, 2) == 1)
    parts = [InMemoryPart(plan, by_key_part(plan))]
    run_all(parts, [click(url, 0), click(url, 20_000)])
    assert len(told(parts)) == 1
    more = divided(plan, parts, 2)
    run_all(more, [click(url, 5_000), click(url, 40_000)])
    assert [time for _, _, time in told(more)] == [20_000]


def test_rows_of_a_store_that_is_gone_are_deleted() -> None:
    """They miss the records since; all others are where their keys belong."""
    plan = aggregated(WINDOWS["tumbling"]).plan("demo", "g")
    run = InMemoryPart(plan, by_key_part(plan))
    run.run([click(b"%d" % number, number) for number in range(20)])
    rows = {key: KeyRow(value) for key, value in run.rows().items()}
    division = Division.of(plan, by_key_part(plan), 1, 2)
    moved = list(division.move(0, {**rows, b"former/a": KeyRow(b"[1]")}))
    assert [each for each in moved if each.key == b"former/a"] == [(0, b"former/a", None)]
    assert (division.dropped, division.kept + division.moved) == (1, 20)
    assert division.arrivals == {1}
    assert [each.partition for each in moved if each.key == b"pages:time"] == [1]


def test_a_row_that_is_not_where_its_key_belongs_is_refused() -> None:
    """The error names the row and both partitions."""
    plan = aggregated(WINDOWS["tumbling"]).plan("demo", "g")
    run = InMemoryPart(plan, by_key_part(plan))
    run.run([click(b"%d" % number, number) for number in range(20)])
    rows = {key: KeyRow(value) for key, value in run.rows().items()}
    division = Division.of(plan, by_key_part(plan), 2, 4)
    with pytest.raises(UsageError, match="is in partition 0, and its key belongs to 1 of 2"):
        list(division.move(0, rows))


_CODE = "tests.unit.extensions.streams.programs"


@pytest.mark.parametrize(
    ("section", "arguments", "words"),
    [
        ("code: '{code}:top_pages'", ["shop", "--partitions", "0"], "greater than or equal to 1"),
        ("code: '{code}:top_pages'", ["shoq", "--partitions", "2"], "did you mean shop?"),
        ("code: '{code}:sold'", ["shop", "--partitions", "2"], "join by a foreign key"),
        ("code: '{code}:enrich'", ["shop", "--partitions", "2"], "reads users beside topics by"),
        (
            "code: '{code}:top_pages', channel: {{processor: {{internal: {{partitions: 3}}}}}}",
            ["shop", "--partitions", "2"],
            "has internal.partitions: 3; set it to 2 before",
        ),
    ],
)
def test_reshard_refuses_other_topologies_without_a_broker(
    tmp_path: Path, section: str, arguments: list[str], words: str
) -> None:
    """The exit code is that of a configuration or command line that cannot be used."""
    path = tmp_path / "headrace.yaml"
    section = section.format(code=_CODE)
    path.write_text(f"topologies: {{shop: {{{section}, group: g}}}}\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["streams", "reshard", *arguments, "-c", str(path)])
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())
