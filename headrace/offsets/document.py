"""The file that offsets are exported to and imported from. docs/offsets.md shows one.

``headrace_offsets`` is the version of the format. Within a version nothing is added, because an
import that passed over what it does not know could do something else than was meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from headrace.offsets.errors import RequestError
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT_VERSION = 1
_VERSION_KEY = "headrace_offsets"
_KEYS = {_VERSION_KEY, "cluster", "group", "exported", "topics"}
_TOPIC_KEYS = {"id", "offsets"}


@dataclass(frozen=True, slots=True)
class OffsetsDocument:
    """Exported offsets. ``cluster`` and the topic ids are None where the file leaves them out.

    ``exported`` is a time in UTC for people; ``group`` says where the offsets come from.
    """

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str | None]
    cluster: str | None = None
    group: str | None = None
    exported: str | None = None

    def dump(self) -> str:
        """Return the file's text."""
        topics = {
            topic: {
                "id": topic_id,
                "offsets": {p.partition: o for p, o in self.offsets.items() if p.topic == topic},
            }
            for topic, topic_id in self.topic_ids.items()
        }
        document = {
            _VERSION_KEY: FORMAT_VERSION,
            "cluster": self.cluster,
            "group": self.group,
            "exported": self.exported,
            "topics": topics,
        }
        return yaml.safe_dump(document, sort_keys=False)

    @classmethod
    def parse(cls, text: str, name: str) -> OffsetsDocument:
        """Read a file's text; ``name`` is what messages call it.

        Raises:
            RequestError: with every mistake in it.
        """
        try:
            content = yaml.safe_load(text)
        except yaml.YAMLError as error:
            where = getattr(error, "problem_mark", None)
            line = "" if where is None else f" (line {where.line + 1})"
            raise RequestError([f"{name}{line}: is neither YAML nor JSON"]) from None
        return _Parser(name).document(content)


class _Parser:
    """Takes a file apart and collects what is wrong with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._problems: list[str] = []

    def document(self, content: Any) -> OffsetsDocument:
        if not isinstance(content, dict) or _VERSION_KEY not in content:
            self._add(f"is no export of offsets: it has no key {_VERSION_KEY}")
            raise RequestError(self._problems)
        version = content[_VERSION_KEY]
        if version != FORMAT_VERSION or isinstance(version, bool):
            self._add(
                f"has format version {version!r}; this Headrace knows {FORMAT_VERSION}, so import "
                "it with the one that wrote it"
            )
            raise RequestError(self._problems)
        self._unknown(content, _KEYS, "")
        topics = self._mapping(content.get("topics"), "topics")
        found = OffsetsDocument(
            offsets={p: o for t, entry in topics.items() for p, o in self._offsets(t, entry)},
            topic_ids={str(t): self._text(e, "id", f"topics.{t}.") for t, e in topics.items()},
            cluster=self._text(content, "cluster"),
            group=self._text(content, "group"),
            exported=self._text(content, "exported"),
        )
        if self._problems:
            raise RequestError(self._problems)
        return found

    def _offsets(self, topic: Any, entry: Any) -> list[tuple[TopicPartition, int]]:
        self._unknown(self._mapping(entry, f"topics.{topic}"), _TOPIC_KEYS, f"topics.{topic}.")
        offsets = entry.get("offsets") if isinstance(entry, dict) else {}
        found = []
        for key, offset in self._mapping(offsets, f"topics.{topic}.offsets").items():
            number = str(key)
            if not number.isdecimal() or isinstance(key, bool):
                self._add(f"topics.{topic}.offsets: {key!r} is not the number of a partition")
            elif not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                self._add(f"topics.{topic}.offsets.{number}: {offset!r} is not an offset")
            else:
                found.append((TopicPartition(str(topic), int(number)), offset))
        return found

    def _mapping(self, value: Any, path: str) -> dict[Any, Any]:
        if isinstance(value, dict):
            return value
        self._add(f"{path}: is missing or not a mapping")
        return {}

    def _text(self, content: Any, key: str, path: str = "") -> str | None:
        value = content.get(key) if isinstance(content, dict) else None
        if value is None or isinstance(value, str):
            return value
        self._add(f"{path}{key}: {value!r} is not a text; put it in quotes")
        return None

    def _unknown(self, content: dict[Any, Any], known: set[str], path: str) -> None:
        for key in content.keys() - known:
            self._add(f"{path}{key}: is not a known key")

    def _add(self, problem: str) -> None:
        self._problems.append(f"{self._name}: {problem}")
