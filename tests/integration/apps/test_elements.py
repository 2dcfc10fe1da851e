"""An application of elements in a daemon: keys that stay, keys that change, and a kill."""

from __future__ import annotations

import json
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.apps.elements.commands import open_topics
from headrace.apps.elements.daemon_config import AppNode
from headrace.core.records import TopicPartition
from headrace.testing.records import FakeRecord
from tests.integration.daemon.conftest import broker, site
from tests.integration.daemon.rig import wait_at_work
from tests.kafka_sinks import committed_records
from tests.unit.apps.elements import programs

if TYPE_CHECKING:
    from headrace.apps.elements.plan import AppPlan
    from tests.integration.daemon.rig import Daemon, Site

__all__ = ["broker", "site"]

#: Seconds that a test may wait for what an application emits.
WAIT = 60.0

CUSTOMERS, ORDERS, PRICE = 20, 10, 30

_APP = '''

class Here(App):
    """The shop, between topics of the test."""

    name = "{name}"

    def on_init(self):
        basket = self.create_element(Basket)
        alarm = self.create_element(Alarm)
        sales = self.create_element(Sales)
        self.create_input_stream("orders", lambda order: order["customer"], basket, topic="{topic}")
        self.create_stream("sums", SAME_KEY, alarm)
        self.create_stream("goods", "good", sales)
        self.create_output_stream("alarms", SAME_KEY, topic="{name}.alarms")
'''


_VISITS = '''
from dataclasses import dataclass

from headrace.apps.elements import SAME_KEY, App, Element, Stream


@dataclass
class Visit(Element):
    """Tells what it has heard."""

    prices = Stream("heard")

    def on_event(self, event):
        if isinstance(event.value, dict):
            self.emit(self.prices, {{"key": self.key, "price": event.value["price"]}})


class Here(App):
    """Instances by key, all of which hear of prices."""

    name = "{name}"

    def on_init(self):
        visit = self.create_element(Visit)
        self.create_input_stream("visits", SAME_KEY, visit, topic="{topic}")
        self.create_input_stream("prices", visit, topic="{name}.prices")
        self.create_output_stream("heard", SAME_KEY, topic="{name}.heard")
'''


def started(site: Site, patch: pytest.MonkeyPatch, text: str) -> tuple[Daemon, AppPlan]:
    """Run the application ``Here`` of a module's text, in which name and topic are left open."""
    name = f"app-{site.group[-6:]}"
    module = name.replace("-", "_")
    code = text.format(name=name, topic=site.topic)
    (site.directory / f"{module}.py").write_text(code, encoding="utf-8")
    patch.setattr(sys, "path", [str(site.directory), *sys.path])
    plan: AppPlan = import_module(module).Here().plan()
    node = AppNode(f"{module}:Here", plan, site.broker.address, site.directory)
    open_topics({"bootstrap.servers": site.broker.address}, plan, 2)
    channels = node.configuration()["channels"]
    for channel in channels.values():
        channel["coordinator"] = {"type": "dynamic", "rebalance_delay": "50ms"}
    return site.daemon({**site.document(), "channels": channels}).start(), plan


@pytest.mark.timeout(400)
def test_an_event_for_every_instance_is_heard_in_each_partition(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes in by one partition, and goes to the instances of all of them once."""
    daemon, plan = started(site, monkeypatch, _VISITS)
    keys = [f"k{number}" for number in range(20)]
    for number in (0, 1):
        visits = [FakeRecord(key_=key.encode(), value_=b'"x"') for key in keys[number::2]]
        site.broker.produce(site.partition(number), *visits)
    changelog = f"{plan.name}.Visit.{site.topic}.state"

    def are_there() -> bool:
        found = committed_records(site.broker.address, changelog)
        return len({each.key() for each in found}) == len(keys)

    assert wait_at_work(are_there, WAIT), daemon.text()
    site.broker.produce(TopicPartition(f"{plan.name}.prices", 0), b'{"price": 5}')
    heard = f"{plan.name}.heard"
    assert wait_at_work(lambda: len(values(site, heard)) >= len(keys), WAIT), daemon.text()
    assert sorted(each["key"] for each in values(site, heard)) == sorted(keys)


@pytest.mark.timeout(400)
def test_an_application_goes_on_after_a_kill_with_each_event_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alarms within one task, and the sums after a change of key, are those of all orders."""
    orders: list[dict[str, Any]] = [
        {"customer": customer, "good": f"good-{number % 3}", "price": PRICE}
        for number in range(ORDERS)
        for customer in range(CUSTOMERS)
    ]
    records = [FakeRecord(value_=json.dumps(each).encode()) for each in orders]
    code = Path(programs.__file__).read_text(encoding="utf-8")
    escaped = code.replace("{", "{{").replace("}", "}}")
    daemon, plan = started(site, monkeypatch, escaped + _APP)
    name = plan.name
    half = len(records) // 2
    site.broker.produce(site.partition(0), *records[:half])
    assert wait_at_work(lambda: values(site, f"{name}.alarms") != [], WAIT), daemon.text()
    daemon.kill()
    site.broker.produce(site.partition(1), *records[half:])
    daemon.start()
    goods: Counter[str] = Counter()
    for order in orders:
        goods[order["good"]] += PRICE
    changelog = f"{plan.part('Sales').topics['goods']}.state"
    assert wait_at_work(lambda: sums(site, changelog) == goods, WAIT), daemon.text()
    alarms = Counter(each["customer"] for each in values(site, f"{name}.alarms"))
    assert alarms == Counter(str(customer) for customer in range(CUSTOMERS))


def values(site: Site, topic: str) -> list[Any]:
    """Return what readers of committed records see."""
    records = committed_records(site.broker.address, topic)
    return [json.loads(each.value() or b"null") for each in records]


def sums(site: Site, changelog: str) -> Counter[str]:
    """Return the sum of each good, as its state was last committed."""
    found: Counter[str] = Counter()
    for record in committed_records(site.broker.address, changelog):
        state = json.loads(record.value() or b"null")
        found[(record.key() or b"").decode()] = state["Sales"]["total"]
    return found
