"""``headrace streams reshard`` on real servers: nothing is lost, told twice, or in two places."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.config import load
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.codecs import partition_of
from headrace.streams import StreamsTest
from headrace.testing.records import FakeRecord
from tests.integration.extensions.keyed.test_daemon import rows
from tests.integration.extensions.streams.commands import (
    EFFECTS,
    headrace,
    killed_at_every_effect,
    run_to_the_end,
    wait_for_members,
)
from tests.integration.extensions.streams.test_daemon import (
    BEGIN,
    URLS,
    clicks,
    produce,
    program,
    stop,
    topology,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.daemon.rig import Site
    from tests.integration.extensions.streams.test_daemon import Click


class Steps:
    """A topology of a reducer, groups of a table and sketches, and what it is to write."""

    def __init__(self, site: Site) -> None:
        self.site, code = site, program(site)
        self.users, self.quiet, reach, names = (site.broker.create_topic(1) for _ in range(4))
        self._tables = (reach, names)
        options = {
            "clicks": site.topic,
            "users": self.users,
            "quiet": self.quiet,
            "reach": reach,
            "names": names,
        }
        self.document = topology(site, code, "steps", options)
        self.file = site.directory / "headrace.yaml"
        self.file.write_text(json.dumps(self.document), encoding="utf-8")
        self.by_key = f"{site.group}.by-url.by-key"
        self._test = StreamsTest(code.steps(**options), batch=100_000)

    def send(self, sent: Sequence[Click]) -> None:
        """Produce clicks, and with each of them a change of the table."""
        produce(self.site, sent)
        changes = []
        for at, (url, n, time) in enumerate(sent):
            self._test.pipe(self.site.topic, {"url": url, "n": n}, time=time)
            value = None if at % 5 == 0 else {"name": ("ann", "bob", "eve")[at % 3]}
            self._test.pipe(self.users, value, key=url, time=time)
            text = None if value is None else json.dumps(value).encode()
            changes.append(FakeRecord(key_=url.encode(), value_=text, timestamp_=time))
        self.site.broker.produce(TopicPartition(self.users, 0), *changes)

    def send_unread(self, url: str, time: int) -> None:
        """Produce a click by its key, as the part before would have written it."""
        self._test.pipe(self.site.topic, {"url": url, "n": 1}, time=time)
        place = TopicPartition(self.by_key, partition_of(url.encode(), 2))
        value = json.dumps({"url": url, "n": 1}).encode()
        record = FakeRecord(key_=url.encode(), value_=value, timestamp_=time)
        self.site.broker.produce(place, record)

    def require_exact(self) -> None:
        """Assert that the topics have what the test kit made of the same records."""
        wanted = sorted((e.value["url"], e.value["clicks"]) for e in self._test.read(self.quiet))
        found = [(value["url"], value["clicks"]) for _, value in rows(self.site, self.quiet)]
        assert sorted(found) == wanted
        for topic in self._tables:
            ends = {(each.key or "").encode(): each.value for each in self._test.read(topic)}
            assert dict(rows(self.site, topic)) == ends


def in_order(count: int, seed: int, begin: int) -> list[Click]:
    """Return clicks in the order of their times."""
    return sorted(clicks(count, seed, begin), key=lambda each: each[2])


def moved_url() -> str:
    """Return a page whose key belongs elsewhere by four partitions than by two."""
    return next(u for u in URLS if partition_of(u.encode(), 2) != partition_of(u.encode(), 4))


@pytest.mark.timeout(400)
def test_a_topology_with_more_partitions_tells_what_it_would_have_told(site: Site) -> None:
    """It is refused while it runs, by no multiple, and while records would be counted elsewhere."""
    steps = Steps(site)
    steps.send(in_order(200, 8, BEGIN))
    run_to_the_end(site, steps.document)
    running = site.daemon(steps.document).start()
    wait_for_members(steps.file, *load(steps.file).channels)
    reshard = ("streams", "reshard", "shop", "--partitions")
    assert "has members" in headrace(steps.file, *reshard, "4", expect=3).stderr
    stop(running)
    no_multiple = headrace(steps.file, *reshard, "3", expect=2).stderr
    assert f"{steps.by_key} has 2 partitions, with a state for 2" in no_multiple
    steps.send_unread(moved_url(), BEGIN + 30_000)
    refused = headrace(steps.file, *reshard, "4", expect=2).stderr
    assert f"shop.by-url has 1 unread records of {steps.by_key}" in refused
    run_to_the_end(site, steps.document)
    said = headrace(steps.file, *reshard, "4").stdout
    assert f"{steps.by_key}: 4 partitions" in said
    assert "rows moved, from 2 to 4 partitions" in said
    assert "rows moved, from 1 to 4 partitions" in said
    again = headrace(steps.file, *reshard, "4").stdout
    assert again.count("each row is where it belongs by 4 partitions") == 2
    steps.send(in_order(200, 9, BEGIN + 40_000))
    steps.send([(url, 1, BEGIN + 100_000) for url in URLS])
    run_to_the_end(site, steps.document)
    steps.require_exact()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_topology_is_exact_wherever_giving_it_more_partitions_is_killed(site: Site) -> None:
    """Run again it does what is left: each row is in one place."""
    steps = Steps(site)
    steps.send(in_order(200, 8, BEGIN))
    run_to_the_end(site, steps.document)
    assert killed_at_every_effect(steps.file, "reshard") > EFFECTS
    steps.send(in_order(200, 9, BEGIN + 40_000))
    steps.send([(url, 1, BEGIN + 100_000) for url in URLS])
    run_to_the_end(site, steps.document)
    steps.require_exact()
