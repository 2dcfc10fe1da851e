"""Celery: the steps as tasks of a chain, with Redis as broker and for results.

Run, it drives rounds; ``celery -A`` finds the tasks of its workers here.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from celery import Celery, chain

from benchmarks.peer_sides.wire import Request, Wire
from benchmarks.peer_sides.workflow_work import STEPS, Child, Effects, Order, serve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The variable with Celery's settings as JSON, for the workers.
_SETTINGS = "BENCHMARK_CELERY"

_MODULE = "benchmarks.peer_sides.workflow_celery"

app = Celery("order")
app.conf.update(json.loads(os.environ.get(_SETTINGS, "{}")))


@cache
def _effects() -> Effects:
    return Effects()


def _made(task: Any, order: dict[str, Any]) -> dict[str, Any]:
    name = task.name.rpartition(".")[2]
    _effects().call(order["instance"], name, task.request.id, order["pause"])
    return {**order, "n": STEPS[name](order["n"])}


@app.task(name="order.reserve", bind=True, ignore_result=True)  # type: ignore[untyped-decorator]
def reserve(self: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Reserve what is ordered; the next task of the chain gets what it returns."""
    return _made(self, order)


@app.task(name="order.charge", bind=True, ignore_result=True)  # type: ignore[untyped-decorator]
def charge(self: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Charge the customer."""
    return _made(self, order)


@app.task(name="order.ship", bind=True)  # type: ignore[untyped-decorator]
def ship(self: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Ship it: its result is that of the chain."""
    return _made(self, order)


class CelerySystem:
    """Two workers, and one client that hears of each result as Celery's own does."""

    def __init__(self, request: Request) -> None:
        settings = request.settings
        app.conf.update(settings["celery"])
        os.environ[_SETTINGS] = json.dumps(settings["celery"])
        client = redis.Redis.from_url(settings["celery"]["result_backend"])
        self._results = client.pubsub(ignore_subscribe_messages=True)
        self._results.psubscribe("celery-task-meta-*")
        command = [sys.executable, "-m", "celery", "-A", _MODULE, "worker", *settings["options"]]
        folder = Path(settings["directory"])
        self._children = [
            Child(name, [*command, "-n", f"{name}@bench"], folder / name)
            for name in ("worker-1", "worker-2")
        ]
        for child in self._children:
            child.start()

    def start(self, orders: Sequence[Order]) -> None:
        """Start a chain for each."""
        with app.producer_pool.acquire(block=True) as producer:
            for each in orders:
                order = {"instance": each.instance, "n": each.n, "pause": each.pause}
                chain(reserve.s(order), charge.s(), ship.s()).apply_async(producer=producer)

    def outcomes(self, timeout: float) -> Iterable[tuple[str, int]]:
        """Yield results as they are published."""
        message = self._results.get_message(timeout=timeout)
        while message is not None:
            found = json.loads(message["data"])
            if found["status"] != "SUCCESS":
                raise AssertionError(f"a task failed: {found}")
            yield found["result"]["instance"], found["result"]["n"]
            message = self._results.get_message(timeout=0.0)

    def kill_worker(self) -> None:
        """Kill the last one with its pool, and start it again."""
        self._children[-1].kill()
        self._children[-1].start()

    def require_running(self) -> None:
        """Look at both."""
        for child in self._children:
            child.require_running()

    def close(self) -> None:
        """End both."""
        for child in self._children:
            child.close()
        self._results.close()


def main() -> None:
    """Serve rounds."""
    serve(Wire(), CelerySystem)


if __name__ == "__main__":
    main()
