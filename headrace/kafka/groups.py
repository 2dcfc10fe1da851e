"""Who consumes as a member of a group by Kafka's own protocol, which Headrace does not use."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from headrace.errors import KafkaUnavailableError
from headrace.kafka import properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.clock import Deadline


def subscribers(
    client_properties: Mapping[str, Any], group: str, deadline: Deadline
) -> tuple[str, ...]:
    """Return the subscribed consumers of a group as ``client id at host``. Blocks.

    They commit offsets of their own; while there are any, the coordinator takes nobody else's.

    Raises:
        KafkaUnavailableError: the group's coordinator did not answer.
    """
    admin = AdminClient(properties.silent(client_properties))
    seconds = max(0.001, deadline.remaining)
    asked = admin.describe_consumer_groups([group], request_timeout=seconds)
    try:
        found = asked[group].result(seconds)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return ()
        raise _unavailable(group, error.args[0].str()) from error
    except FutureTimeoutError as error:
        raise _unavailable(group, "no answer in time") from error
    return tuple(f"{member.client_id} at {member.host.lstrip('/')}" for member in found.members)


def _unavailable(group: str, reason: str) -> KafkaUnavailableError:
    return KafkaUnavailableError(
        f"group {group} cannot be described: {reason}; are the brokers running, and may this "
        "user describe the group?"
    )
