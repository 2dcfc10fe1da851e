"""A package with a decoder, installed as pip would: its code, and what it says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Values such as ``id=1;name=a``. What decodes has a lock, which nobody can send anywhere. Each
#: decoder that is made leaves a line in ``made``, with the process that it is for.
CODE = """
import os
import threading

from headrace import RetryableError


class Pairs:
    def __init__(self, separator, made):
        self.separator = separator
        self.lock = threading.Lock()
        with open(made, "a") as file:
            file.write(f"{os.getpid()}\\n")

    def __call__(self, value):
        with self.lock:
            return decode(value, self.separator)


def decode(value, separator):
    if value == b"down":
        raise RetryableError("the registry does not answer")
    pairs = dict(part.split("=") for part in value.decode().split(separator))
    return {**pairs, "id": int(pairs["id"])} if "id" in pairs else pairs
"""

INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: acme-pairs\nVersion: 1.2\n",
    "entry_points.txt": "[headrace.decoders]\npairs = acme_pairs:Pairs\n",
    "RECORD": "",
}


def install_pairs(folder: Path) -> Path:
    """Install it into a folder, and return the file that says what was made."""
    info = folder / "acme_pairs-1.2.dist-info"
    info.mkdir(parents=True)
    for name, text in INFO.items():
        (info / name).write_text(text)
    (folder / "acme_pairs.py").write_text(CODE)
    return folder / "made"
