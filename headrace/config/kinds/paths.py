"""Paths in the file: relative ones start from the folder the file is in."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from headrace.config.kinds.base import refuse
from headrace.config.kinds.text import Text
from headrace.config.origin import origin_of


def _resolve(text: str, info: ValidationInfo) -> Path:
    return Path(absolute(text, info))


def _resolve_folder(text: str, info: ValidationInfo) -> str:
    if _URL.match(text):
        raise refuse("is a URL; give a folder, of this host or one that all executors see")
    return absolute(text, info)


def absolute(text: str, info: ValidationInfo) -> str:
    """Return the path that ``text`` means in the file."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise refuse("begins with ~, but that user has no home folder here") from None
    return os.path.normpath(origin_of(info).folder / path)


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATH = r"(?s:[^\0]*[^\0\s][^\0]*)"

LocalPath = Annotated[Path, Text("a path", _PATH), AfterValidator(_resolve)]
TableFolder = Annotated[str, Text("a path", _PATH), AfterValidator(_resolve_folder)]
