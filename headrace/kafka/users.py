"""Users of a cluster: their passwords for SCRAM, and their rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka import admin as client_admin

from headrace.kafka import clients
from headrace.kafka.clients import answer
from headrace.kafka.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from headrace.core.clock import Deadline

#: The mechanism that passwords are kept for.
MECHANISM = "SCRAM-SHA-512"

# in the client's documentation, but not in the package's __all__
_api: Any = client_admin

#: Operations of a user who reads, writes and makes what a process of ours does.
_RIGHTS = {
    "TOPIC": ("READ", "WRITE", "CREATE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS"),
    "GROUP": ("READ", "DESCRIBE", "DELETE"),
    "TRANSACTIONAL_ID": ("WRITE", "DESCRIBE"),
    "BROKER": ("DESCRIBE", "DESCRIBE_CONFIGS", "IDEMPOTENT_WRITE"),
}
#: As Kafka names the only thing of this kind.
_CLUSTER = "kafka-cluster"


def put_password(
    properties: Mapping[str, Any], user: str, password: str, deadline: Deadline
) -> None:
    """Set the user's password for SCRAM, in place of a former one. Blocks.

    Raises:
        KafkaUnavailableError: the brokers did not take it by the deadline.
    """
    info = _api.ScramCredentialInfo(_api.ScramMechanism.SCRAM_SHA_512, 4096)
    change = _api.UserScramCredentialUpsertion(user, info, password.encode())
    admin = _api.AdminClient(clients.silent(properties))
    asked = admin.alter_user_scram_credentials([change], request_timeout=deadline.left)
    _await(asked, f"the password of user {user}", deadline)


def allow_all(properties: Mapping[str, Any], user: str, deadline: Deadline) -> None:
    """Add the user's rights to each topic, group and transaction. Blocks.

    Raises:
        KafkaUnavailableError: the brokers did not take them by the deadline.
    """
    bindings = [
        _api.AclBinding(
            getattr(_api.ResourceType, kind),
            _CLUSTER if kind == "BROKER" else "*",
            _api.ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            getattr(_api.AclOperation, operation),
            _api.AclPermissionType.ALLOW,
        )
        for kind, operations in _RIGHTS.items()
        for operation in operations
    ]
    admin = _api.AdminClient(clients.silent(properties))
    asked = admin.create_acls(bindings, request_timeout=deadline.left)
    _await(asked, f"the rights of user {user}", deadline)


def _await(asked: Mapping[Any, Future[Any]], what: str, deadline: Deadline) -> None:
    try:
        for future in asked.values():
            answer(future, deadline)
    except KafkaException as error:
        raise KafkaUnavailableError(
            f"the brokers did not take {what}: {error.args[0].str()}"
        ) from error
