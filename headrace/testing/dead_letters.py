"""A dead-letter topic in memory."""

from __future__ import annotations

from threading import Condition
from typing import TYPE_CHECKING

from headrace.kafka.ports import DeadLetter, DeadLetterError

if TYPE_CHECKING:
    from headrace.clock import Deadline


class InMemoryDeadLetters:
    """Keeps what is put into dead-letter topics, in order. Any thread.

    ``refuse`` makes it fail, as when no broker can be reached.
    """

    def __init__(self) -> None:
        self.letters: list[tuple[str, DeadLetter]] = []
        self.refuse: str | None = None
        self.closed = False
        self._changed = Condition()

    def store(self, topic: str, letter: DeadLetter, deadline: Deadline) -> None:
        """Keep the record."""
        del deadline
        with self._changed:
            if self.refuse is not None:
                raise DeadLetterError(self.refuse)
            self.letters.append((topic, letter))
            self._changed.notify_all()

    def said(self, name: str) -> list[str]:
        """Return what the records kept say under one of our headers, without its prefix."""
        found = (dict(letter.headers).get(f"headrace.{name}") for _, letter in self.letters)
        return ["" if text is None else text.decode() for text in found]

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True
