"""The time in which code has to return its topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import ConfigError
from headrace.extensions.streams import load
from tests.unit.extensions.streams import programs

if TYPE_CHECKING:
    from collections.abc import Callable

_CODE = f"{programs.__name__}:top_pages"


class SlowThread:
    """A thread that gets a share of a core, and is done after so many looks at it."""

    share = 0.0
    needed = 1
    used = 0.0

    def __init__(self, target: Callable[[], None], **_: object) -> None:
        self._target, self._looks = target, 0

    def start(self) -> None:
        """Begin."""

    def join(self, seconds: float) -> None:
        """Let the time pass; run what there is to run in the last look."""
        self._looks += 1
        SlowThread.used += self.share * seconds
        if self._looks == self.needed:
            self._target()

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return self._looks < self.needed


@pytest.mark.parametrize(
    ("share", "needed", "is_enough"),
    [
        (0.1, 1, True),
        (0.1, 8, True),  # a busy machine: 4 s of the processor in 40 s
        (0.5, 3, False),  # it computes for more than 5 s
        (1.0, 2, False),
        (0.0, 2, False),  # it waits for something
        (0.06, 13, False),  # it makes hardly any progress in a minute
    ],
)
def test_code_that_works_is_waited_for_until_it_had_the_processor_for_the_limit(
    monkeypatch: pytest.MonkeyPatch, share: float, needed: int, is_enough: bool
) -> None:
    """Code that hangs is refused after 5 s, and code that a busy machine slows down is not."""
    monkeypatch.setattr(SlowThread, "share", share)
    monkeypatch.setattr(SlowThread, "needed", needed)
    monkeypatch.setattr(SlowThread, "used", 0.0)
    monkeypatch.setattr(load, "Thread", SlowThread)
    monkeypatch.setattr(load, "process_time", lambda: SlowThread.used)
    if is_enough:
        assert load.load_plan(_CODE, {}, "shop", "g", {}).name == "shop"
        return
    with pytest.raises(ConfigError, match="has not returned its topology after 5 s"):
        load.load_plan(_CODE, {}, "shop", "g", {})
