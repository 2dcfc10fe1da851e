"""Paths in the file: relative ones start from the folder the file is in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from headrace.config.kinds.base import refuse
from headrace.config.kinds.text import Text
from headrace.config.origin import origin_of


def _resolve(text: str, info: ValidationInfo) -> Path:
    return Path(absolute(text, info))


def _resolve_unless_url(text: str, info: ValidationInfo) -> str:
    return text if "://" in text else absolute(text, info)


def absolute(text: str, info: ValidationInfo) -> str:
    """Return the path that ``text`` means in the file."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise refuse("begins with ~, but that user has no home folder here") from None
    return os.path.normpath(origin_of(info).folder / path)


_PATH = r"(?s:[^\0]*[^\0\s][^\0]*)"

LocalPath = Annotated[Path, Text("a path", _PATH), AfterValidator(_resolve)]
PathOrUrl = Annotated[
    str,
    Text("a path, or a URL such as s3://bucket/table", _PATH),
    AfterValidator(_resolve_unless_url),
]
