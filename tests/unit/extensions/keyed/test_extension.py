from __future__ import annotations

from typing import Any

from headrace.extensions.keyed.api import Output
from headrace.testing.keyed import KeyedTest


class Counter:
    """Counts facts, and has a method whose name is a common one."""

    def __call__(self, _key: Any, state: Any, facts: Any, _now: int) -> Any:
        """Return how many facts there were."""
        count = (state or 0) + len(facts)
        return count, [Output(count)], {}

    def extend(self, *given: Any) -> Any:
        """Fail, as it is not to be called."""
        raise AssertionError(given)


def test_a_method_of_a_reducer_is_not_called_for_its_name() -> None:
    """A reducer that has an ``extend`` of its own gets its records as they come."""
    assert len(KeyedTest(Counter()).send(("a", 1, 1000))) == 1
