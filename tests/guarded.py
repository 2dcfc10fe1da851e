"""A broker that checks what its users may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import admin as client_admin

from headrace.devstack.kafka import KafkaBroker
from headrace.devstack.server import LOOPBACK, free_port
from tests.brokers import Broker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from headrace.ops.doctor.acls import Acl

WAIT = 30.0

_api: Any = client_admin
_RESOURCES = {
    "topic": _api.ResourceType.TOPIC,
    "group": _api.ResourceType.GROUP,
    "transactional-id": _api.ResourceType.TRANSACTIONAL_ID,
}


class Guarded:
    """A broker with a door for operators, who may do all, and one for users, who may do nothing."""

    def __init__(self, directory: Path) -> None:
        port, controller, users = free_port(), free_port(), free_port()
        plain, guarded = f"PLAINTEXT://{LOOPBACK}:{port}", f"USERS://{LOOPBACK}:{users}"
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        self._server = KafkaBroker(
            directory,
            port=port,
            controllers={1: controller},
            short_lived=True,
            properties={
                "listeners": f"{plain},{guarded},CONTROLLER://{LOOPBACK}:{controller}",
                "advertised.listeners": f"{plain},{guarded}",
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT"
                ),
                "listener.name.users.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.users.plain.sasl.jaas.config": (
                    f'{login} required user_headrace="secret";'
                ),
                "authorizer.class.name": (
                    "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
                ),
                "super.users": "User:ANONYMOUS",
            },
        )
        self._server.start()
        self.operator = Broker(self._server.address)
        self.users = f"{LOOPBACK}:{users}"
        self.properties: dict[str, Any] = {
            "bootstrap.servers": self.users,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "headrace",
            "sasl.password": "secret",
            "log_level": 0,
        }
        self._admin = _api.AdminClient({"bootstrap.servers": self._server.address, "log_level": 0})

    def allow(self, acls: Iterable[Acl]) -> None:
        """Give the user these permissions and no others."""
        everything = _api.AclBindingFilter(
            _api.ResourceType.ANY,
            None,
            _api.ResourcePatternType.ANY,
            None,
            None,
            _api.AclOperation.ANY,
            _api.AclPermissionType.ANY,
        )
        for answer in self._admin.delete_acls([everything]).values():
            answer.result(WAIT)
        bindings = [_binding(acl, operation) for acl in acls for operation in acl.operations]
        for answer in self._admin.create_acls(bindings).values() if bindings else ():
            answer.result(WAIT)

    def close(self) -> None:
        """End the broker."""
        self._server.kill()


def _binding(acl: Acl, operation: str) -> Any:
    kind = _api.ResourcePatternType.PREFIXED if acl.prefixed else _api.ResourcePatternType.LITERAL
    return _api.AclBinding(
        _RESOURCES[acl.resource],
        acl.name,
        kind,
        "User:headrace",
        "*",
        _api.AclOperation[operation.upper()],
        _api.AclPermissionType.ALLOW,
    )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker that checks permissions."""
    broker = Guarded(tmp_path_factory.mktemp("guarded"))
    yield broker
    broker.close()
