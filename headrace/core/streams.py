"""Standard output that takes any text, whatever the locale has it encoded in."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO


def take_any_text(stream: TextIO | None = None) -> None:
    """Set standard output, or another stream, to write escapes for what it cannot encode.

    As standard error does by itself. By default it raises: on the first "Zürich" where the locale
    is "C", and on half a character, which JSON may hold, everywhere.
    """
    stream = sys.stdout if stream is None else stream
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")
