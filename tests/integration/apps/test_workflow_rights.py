"""Those who ask for outcomes and listen, on a broker that checks permissions."""

from __future__ import annotations

import pytest

from headrace.apps.workflow.errors import NoOutcomeError
from headrace.apps.workflow.executor import ResultsListener, find_outcome
from headrace.apps.workflow.topics import Topics, create_topics
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.kafka.clients import properties_of
from headrace.kafka.errors import KafkaAccessError
from headrace.ops.doctor.acls import Acl
from headrace.testing.records import FakeRecord
from tests.guarded import Guarded, guarded

__all__ = ["guarded"]

#: Seconds that the broker has to refuse.
WAIT = 30.0

pytestmark = pytest.mark.slow


def test_without_the_right_to_read_nothing_is_said_to_be_missing(guarded: Guarded) -> None:
    """A user with Describe alone gets an access error, from a question and from a listener."""
    topics = Topics("rights")
    operator = properties_of(guarded.operator.address)
    create_topics(operator, topics, partitions=2, assignments=1)
    record = FakeRecord(key_=b"other", value_=b"{}")
    for number in (0, 1):
        guarded.operator.produce(TopicPartition(topics.outcomes, number), record)
    guarded.allow([Acl("topic", topics.name, ("Describe",), prefixed=True)])
    user = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "headrace",
        "sasl.password": "secret",
    }
    client = properties_of(guarded.users, user)
    with pytest.raises(KafkaAccessError, match=r"topic 'rights.outcomes' cannot be read: .*READ"):
        find_outcome(client, topics, "i", 0)
    listener = ResultsListener(print, guarded.users, topic=topics.results, properties=user)
    assert wait_for(lambda: listener.error, Deadline.after(WAIT))
    with pytest.raises(KafkaAccessError, match=r"topic 'rights.results' cannot be read"):
        listener.close()
    guarded.allow([Acl("topic", topics.name, ("Describe", "Read"), prefixed=True)])
    with pytest.raises(NoOutcomeError):
        find_outcome(client, topics, "i", 0)
