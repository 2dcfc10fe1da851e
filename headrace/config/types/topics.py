"""The types of topics and patterns, and of lists of partitions."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

from headrace.config.errors import FieldConflict, conflict_in, printable, subject
from headrace.config.expand import Expanded
from headrace.config.subscription import is_pattern
from headrace.config.types.scalars import TOPIC_NAME, FieldType, Text, refuse


class TopicOrPattern(Text):
    """A topic's name, or a pattern: see :class:`headrace.config.subscription.Subscription`."""

    def read(self, value: Any) -> str:
        if not (isinstance(value, str) and is_pattern(value)):
            return super().read(value)
        fault = _fault(value)
        if fault is not None:
            raise refuse(f"is not a regular expression that can be used{fault}")
        return str(value)


TopicEntry = Annotated[
    str,
    TopicOrPattern(
        f"{TOPIC_NAME.description} or a pattern that begins with '^'", TOPIC_NAME.pattern
    ),
]


def _fault(pattern: str) -> str | None:
    """Return what is wrong with a pattern and where, None if nothing is.

    What Python warns of counts too, because it means something else in another version. Reasons
    may quote the pattern, so none is given for what a reference expands to: it may be a secret.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except re.error as error:
        reason = error.msg if error.pos is None else f"{error.msg} at position {error.pos}"
    except (OverflowError, RecursionError, Warning) as error:
        reason = str(error)
    else:
        return None
    return "" if isinstance(pattern, Expanded) else f": {printable(reason)}"


_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")

#: Ten times what Kafka's documentation reports for the largest clusters, per topic.
MAX_PARTITION = 99_999


@dataclass(frozen=True, slots=True)
class PartitionNumbers(FieldType):
    """A list of partition numbers and ranges with both ends included, each number once."""

    description = (
        f'a list of partition numbers and ranges such as [0, "3-5"], up to {MAX_PARTITION}'
    )

    def read(self, value: Any) -> frozenset[int]:
        if not isinstance(value, (list, tuple)) or not value:
            raise self.not_accepted()
        numbers: set[int] = set()
        found: list[FieldConflict] = []
        for index, item in enumerate(value):
            try:
                added = _range(item)
                _refuse_repeated(numbers, added)
                numbers.update(added)
            except ValueError as error:
                found.append(FieldConflict((index,), f"{subject(item)} {error}"))
        if found:
            raise conflict_in(found)
        return frozenset(numbers)

    def write(self, value: frozenset[int]) -> list[int | str]:
        runs = groupby(enumerate(sorted(value)), key=lambda pair: pair[1] - pair[0])
        return [_format_run([number for _, number in run]) for _, run in runs]

    def json_schema(self) -> dict[str, Any]:
        number = {"type": "integer", "minimum": 0, "maximum": MAX_PARTITION}
        return {
            "type": "array",
            "items": {"anyOf": [number, {"type": "string", "pattern": r"^[0-9]+-[0-9]+$|\$\{"}]},
            "minItems": 1,
        }


def _range(item: Any) -> range:
    match = _RANGE.fullmatch(item) if isinstance(item, str) else None
    if match is not None and (match[2] or isinstance(item, Expanded)):
        first, last = int(match[1]), int(match[2] or match[1])
    elif type(item) is int:
        first = last = item
    else:
        raise ValueError('is not a partition number or a range such as "3-5"')
    if not 0 <= first <= MAX_PARTITION or last > MAX_PARTITION:
        raise ValueError(f"is not within partitions 0 to {MAX_PARTITION}")
    if last < first:
        raise ValueError("runs backwards; write the lower number first")
    return range(first, last + 1)


def _format_run(run: list[int]) -> int | str:
    return run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}"


def _refuse_repeated(numbers: set[int], added: range) -> None:
    repeated = numbers.intersection(added)
    if repeated:
        raise ValueError(f"names partition {min(repeated)} again; name each once")


PartitionSet = Annotated[frozenset[int], PartitionNumbers()]
