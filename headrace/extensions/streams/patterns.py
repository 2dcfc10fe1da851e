r"""Regular expressions of which RE2, Java and Python find the same.

They differ in classes (Python's ``\s`` has a vertical tab), in ``.`` and ``$`` at new lines, in
flags, in what refers back and in what looks around. What is left is a regular language.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_ALLOWED = "characters, . [a-z] \\d \\D \\w \\W ( ) (?: ) | * + ? {m,n} ^ $"

#: Characters that mean themselves after a backslash in every engine.
_ESCAPED = frozenset(".^$|()[]{}*+?\\/-")
_CLASSES = frozenset("dDwW")

#: Times that a part may be repeated; RE2 takes no more.
MOST_REPEATS = 1000

_REPEAT = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}")


class _Pattern:
    """Reads a pattern from left to right; each method begins where the one before it ended."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> None:
        self._alternatives()
        if self._at < len(self._text):
            raise self._error("has a ) without its (")

    def _alternatives(self) -> None:
        self._sequence()
        while self._take("|"):
            self._sequence()

    def _sequence(self) -> None:
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._take("^") or self._take("$"):
                if self._peek() in {"*", "+", "?", "{"}:
                    raise self._error("repeats ^ or $")
                continue
            self._atom()
            self._repeat()

    def _atom(self) -> None:
        if self._take("("):
            if self._take("?") and not self._take(":"):
                raise self._error("has (? that does not go on with :")
            self._alternatives()
            if not self._take(")"):
                raise self._error("has a ( without its )")
        elif self._take("["):
            self._class()
        elif self._take("\\"):
            self._escaped(_ESCAPED | _CLASSES)
        elif self._peek() in {"*", "+", "?", "{", "}", "]"}:
            raise self._error(f"has {self._peek()!r} where a character is expected; write \\ first")
        else:
            self._at += 1

    def _class(self) -> None:
        self._take("^")
        count = 0
        while not self._take("]"):
            low = self._member()
            count += 1
            if low is not None and self._peek() == "-" and self._peek(1) not in {"]", ""}:
                self._at += 1
                high = self._member()
                if high is None or high < low:
                    raise self._error("has a range whose end is before its beginning")
        if count == 0:
            raise self._error("has a class without a character")

    def _member(self) -> str | None:
        r"""Read a character of a class and return it; None for one such as ``\d``."""
        if self._at >= len(self._text):
            raise self._error("has a [ without its ]")
        if self._take("\\"):
            escaped = self._escaped(_ESCAPED | _CLASSES)
            return None if escaped in _CLASSES else escaped
        found = self._text[self._at]
        # [[:alpha:]] is RE2's, && is Java's, and || ~~ -- will be Python's
        if found in "[&|~^" or (found == "-" and self._peek(1) not in {"]", ""}):
            raise self._error(f"has {found!r} in a class; write \\ first")
        self._at += 1
        return found

    def _escaped(self, allowed: frozenset[str]) -> str:
        found = self._peek()
        if found not in allowed:
            raise self._error(f"has \\{found}")
        self._at += 1
        return found

    def _repeat(self) -> None:
        if not (self._take("*") or self._take("+") or self._take("?")):
            if self._peek() != "{":
                return
            match = _REPEAT.match(self._text, self._at)
            if match is None:
                raise self._error("has { that is no {m}, {m,} or {m,n}")
            most = match[3] or match[1]
            if int(match[1]) > int(most) or int(most) > MOST_REPEATS:
                raise self._error(f"repeats {match[0]}, which is not from 0 to {MOST_REPEATS}")
            self._at = match.end()
        if self._peek() in {"*", "+", "?", "{"}:
            raise self._error("repeats what is repeated; put it in ( )")

    def _peek(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _take(self, sign: str) -> bool:
        if self._peek() != sign:
            return False
        self._at += 1
        return True

    def _error(self, problem: str) -> TypeError:
        return TypeError(
            f"matches({self._text!r}) {problem} at character {self._at}; patterns may have "
            f"{_ALLOWED}, which all engines read alike"
        )


def check_pattern(pattern: object) -> None:
    """Return if all engines read the pattern alike.

    Raises:
        TypeError: they do not, or it is no pattern; the text says where.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"matches({pattern!r}): a pattern is a text")
    _Pattern(pattern).read()
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        raise TypeError(f"matches({pattern!r}): {error}; make it shorter") from error
