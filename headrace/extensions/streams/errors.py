"""Errors of topologies that run."""

from __future__ import annotations

from headrace.core.errors import HeadraceError


class QuestionError(HeadraceError):
    """A question for rows or states is refused. ``name`` is the error's own in the API, and stable.

    ``value`` is what was wrong in the question, ``next_step`` what to do about it.
    """

    def __init__(self, name: str, message: str, *, value: str | None, next_step: str) -> None:
        super().__init__(f"{message}; {next_step}")
        self.name, self.text, self.value, self.next_step = name, message, value, next_step
