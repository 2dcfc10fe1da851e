"""Brokers of other versions than the local stack's own."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[3]

#: The adapters' and the Kafka sink's contracts, and who is shut out of a transaction; what else
#: ``make test-lines`` runs on a broker takes minutes.
_CONTRACTS = tuple(
    f"tests/integration/kafka/test_{name}.py" for name in ("contract", "fencing", "sink")
)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, as ``make test-lines`` runs it."""
    monkeypatch.syspath_prepend(str(_ROOT / "scripts"))
    return importlib.import_module("lines")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["kafka-3.9", "kafka-4.0"])
def test_the_contracts_hold_on_other_brokers(lines: Any, name: str) -> None:
    """Reading, offsets, transactions and their fencing are as on the stack's own broker."""
    line = replace(lines.LINES[name], tests=_CONTRACTS, options=lines.NO_KILLS)
    code, result = lines.run_line(name, line)
    assert code == 0, result
