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
from headrace.testing.records import FakeRecord
from tests.integration.daemon.conftest import broker, site
from tests.integration.daemon.rig import wait_at_work
from tests.kafka_sinks import committed_records
from tests.unit.apps.elements import programs

if TYPE_CHECKING:
    from headrace.apps.elements.plan import AppPlan
    from tests.integration.daemon.rig import Site

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


@pytest.mark.timeout(400)
def test_an_application_goes_on_after_a_kill_with_each_event_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alarms within one task, and the sums behind a change of key, are those of all orders."""
    name = f"shop-{site.group[-6:]}"
    code = Path(programs.__file__).read_text(encoding="utf-8")
    module = f"app_{site.group[-6:]}"
    text = code + _APP.format(name=name, topic=site.topic)
    (site.directory / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(site.directory), *sys.path])
    plan: AppPlan = import_module(module).Here().plan()
    node = AppNode(f"{module}:Here", plan, site.broker.address, site.directory)
    open_topics({"bootstrap.servers": site.broker.address}, plan, 2)
    channels = node.configuration()["channels"]
    for channel in channels.values():
        channel["coordinator"] = {"type": "dynamic", "rebalance_delay": "50ms"}
    orders: list[dict[str, Any]] = [
        {"customer": customer, "good": f"good-{number % 3}", "price": PRICE}
        for number in range(ORDERS)
        for customer in range(CUSTOMERS)
    ]
    records = [FakeRecord(value_=json.dumps(each).encode()) for each in orders]
    daemon = site.daemon({**site.document(), "channels": channels}).start()
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
