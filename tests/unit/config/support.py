"""Small files to load, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import ChannelConfig, Config, load
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: The least that a file holds; tests put sections before it.
CHANNELS = """
channels:
  flights:
    topics: [flights]
    group: statistics
    processor: {type: spark, reducer: "reducers:reduce"}
    sink: noop
"""


def loaded(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> Config:
    """Load a file with ``text`` in ``folder``."""
    path = folder / "headrace.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, {"HOME": "/home/me"} | dict(environ or {}))


def refused(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the problems of a file with ``text`` in ``folder``."""
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text, environ)
    return caught.value.problems


def channel(**fields: Any) -> ChannelConfig:
    """Build a channel as code does, with ``fields`` over the least that it needs."""
    least = {
        "topics": ["flights"],
        "group": "statistics",
        "processor": {"type": "spark", "reducer": "reducers:reduce"},
        "sink": "noop",
    }
    return ChannelConfig.model_validate(least | fields)
