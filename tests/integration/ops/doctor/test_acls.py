"""The permissions that the doctor prints, on a broker that checks them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import Config
from headrace.controller.controller import KafkaController
from headrace.core.clock import Deadline
from headrace.core.findings import Level
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.kafka.fencing import GroupPartition, fence_producers
from headrace.kafka.transaction_log import TRANSACTION_LOG
from headrace.ops.doctor import kafka
from headrace.ops.doctor.acls import Acl, needed_acls
from headrace.ops.doctor.kafka import check_kafka
from headrace.processors import BatchProcessor, BatchResponse
from tests.guarded import Guarded, guarded
from tests.integration.seen import recorded

if TYPE_CHECKING:
    from headrace.core.records import Batch

__all__ = ["guarded"]

WAIT = 30.0

pytestmark = pytest.mark.slow


class Seen(BatchProcessor):
    """Advances over everything."""

    def __init__(self) -> None:
        self.records = 0

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Count."""
        self.records += len(batch)
        return BatchResponse.advance()


@pytest.fixture(params=["metadata", "transactions", "zookeeper"])
def settings(request: pytest.FixtureRequest, guarded: Guarded, document: dict[str, Any]) -> Config:
    """A configuration for the guarded broker, for each way to keep offsets."""
    kept = "zookeeper" if request.param == "zookeeper" else {"fencing": request.param}
    document["kafka"] = {
        "bootstrap_servers": guarded.users,
        "sasl": {"mechanism": "PLAIN", "username": "headrace", "password": "secret"},
    }
    document["metrics"] = {"port": None}
    channel = document["channels"]["main"]
    topic = guarded.operator.create_topic(1)
    guarded.operator.create_topic(1, f"{topic}.more")
    channel |= {"topics": [topic, rf"^{re.escape(topic)}\.m"], "offsets": kept}
    guarded.operator.produce(TopicPartition(topic, 0), b"1", b"2")
    guarded.operator.produce(TopicPartition(f"{topic}.more", 0), b"3")
    return Config.model_validate(document)


def _warned(settings: Config) -> set[str]:
    """Return what the doctor has to say, but for what only operators may see."""
    found = {f.check for f in check_kafka(settings) if f.level is not Level.OK}
    return found - {"kafka offset retention"}


def test_the_least_permissions_suffice_and_none_can_be_spared(
    guarded: Guarded, settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel reads, commits and stops with just these; without any one the doctor warns."""
    monkeypatch.setattr(kafka, "TIMEOUT", 5.0)
    monkeypatch.setattr(kafka, "PAUSE", 0.1)
    acls = needed_acls(settings)
    guarded.allow(acls)
    # the broker takes a moment to go by new permissions
    assert wait_for(lambda: not _warned(settings), Deadline.after(WAIT))
    seen = Seen()
    controller = KafkaController(settings, processors={"main": seen})
    controller.start(Deadline.after(WAIT))
    read = wait_for(lambda: seen.records == 3, Deadline.after(WAIT))
    assert controller.stop(Deadline.after(WAIT)).clean
    assert read
    for spared in acls:
        guarded.allow([acl for acl in acls if acl is not spared])
        assert wait_for(lambda: bool(_warned(settings)), Deadline.after(WAIT)), spared


def test_without_the_right_to_read_the_group_a_producer_is_shut_out_all_the_same(
    guarded: Guarded,
) -> None:
    """Offsets that it may have left in doubt in the group are not cleared; the log says so."""
    topic = guarded.operator.create_topic(1)
    guarded.allow(
        [
            Acl("topic", topic, ("Read",)),
            Acl("topic", TRANSACTION_LOG, ("Read",)),
            Acl("transactional-id", "tx", ("Write",), prefixed=True),
        ]
    )
    properties = guarded.properties
    fence_producers(properties, ["tx.1"], Deadline.after(WAIT))
    place = GroupPartition("some group", TopicPartition(topic, 0))
    with recorded() as log:
        fence_producers(properties, ["tx.1"], Deadline.after(WAIT), place)
    log.expect("pending_offsets_not_cleared", transactional_id="tx.1")
    log.expect("producer_fenced", transactional_id="tx.1")
