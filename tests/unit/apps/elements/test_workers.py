"""Elements of a package that Spark's workers do not have: they get it with the reducer."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from headrace.extensions.spark.reducer import send_by_value

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_SHOP = """
from dataclasses import dataclass, field

from headrace.apps.elements import Element, Stream


class Base(Element):
    def on_event(self, event):
        self.seen.append(event.value)


@dataclass
class Seen(Base):
    all = Stream("out", key="seen")
    seen: list = field(default_factory=list)

    def on_event(self, event):
        super().on_event(event)

    def on_trigger(self):
        self.emit(self.all, {"seen": len(self.seen)})


seen = Seen.as_reducer(every=2)
"""

_WORKER = """
import pickle, sys

reducer = pickle.loads(sys.stdin.buffer.read())
from headrace.keyed import Event
events = [Event(n, n, "t", 0, n) for n in range(2)]
state, outputs, timers = reducer("k", None, events, 0)
print(state, outputs[0].value, outputs[0].key, "shop_of_elements" in sys.modules)
"""


def test_a_worker_without_the_package_runs_its_elements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class goes there as it is, with what it is derived from."""
    (tmp_path / "shop_of_elements.py").write_text(_SHOP, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    shop = importlib.import_module("shop_of_elements")
    send_by_value(shop.seen)
    pickler: Any = cloudpickle
    try:
        data = pickler.dumps(shop.seen)
    finally:
        pickler.unregister_pickle_by_value(shop)
        del sys.modules["shop_of_elements"]
    command = [sys.executable, "-c", _WORKER]
    done = subprocess.run(command, input=data, capture_output=True, timeout=60, check=False)
    assert done.stdout.decode() == "{'seen': [0, 1]} {'seen': 2} 2 False\n", done.stderr.decode()
