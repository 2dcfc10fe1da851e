from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.testing.registry import RegistryServer
from tests.contracts.schema_registry import SchemaRegistryContract

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class TestRegistryServer(SchemaRegistryContract):
    """The double keeps the contract."""

    @pytest.fixture
    def url(self) -> Iterator[str]:
        """The double's address."""
        with RegistryServer() as server:
            yield server.url


def test_a_file_keeps_schemas_for_the_next_registry(tmp_path: Path) -> None:
    """Ids and versions are the same after a restart in another process."""
    file = tmp_path / "schemas.json"
    first = RegistryServer(file=file)
    number = first.register("a", '"long"')
    again = RegistryServer(file=file)
    assert again.register("a", '"long"') == number
    assert again.guid(number) == first.guid(number)
    assert again.register("a", '"int"') != number
