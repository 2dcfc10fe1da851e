"""Files of a store that are replaced, killed one line later each time.

python -m tests.unit.extensions.keyed.killed_store_folder FOLDER
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.extensions.keyed import store_folder
from headrace.extensions.keyed.store_folder import StoreFolder
from headrace.testing.kills import killed_at_every_line

if TYPE_CHECKING:
    from collections.abc import Callable

#: What is in the only file of a store, and the names of those that were and are to be there.
CONTENT, KNOWN = "content", "known"


def main(folder: Path) -> None:
    """Kill one replacement after the other, and print how often the former files were left."""
    place = StoreFolder(folder / "db")
    place.path.mkdir(parents=True)
    (place.path / CONTENT).write_text("first")
    known = folder / KNOWN
    known.write_text("first first\n")
    killed_at_every_line(partial(_prepare, folder), [store_folder])
    pairs = [line.split() for line in known.read_text().splitlines()]
    kept = Counter(after == before for (before, _), (after, _) in pairwise(pairs))
    assert (place.path / CONTENT).read_text() == pairs[-1][1]
    assert {each.name for each in folder.iterdir()} == {"db", KNOWN}
    sys.stdout.write(f"{kept[True]} {kept[False]}\n")


def _prepare(folder: Path, number: int) -> Callable[[], None]:
    """Look at what the one before left, as a start does, and return the next replacement."""
    place, known = StoreFolder(folder / "db"), folder / KNOWN
    place.settle()
    found = (place.path / CONTENT).read_text()
    assert found in known.read_text().splitlines()[-1].split()
    assert {each.name for each in folder.iterdir()} == {"db", KNOWN}
    with known.open("a") as lines:
        lines.write(f"{found} {number}\n")
    return partial(_replace, place, str(number))


def _replace(place: StoreFolder, content: str) -> None:
    with place.replacing() as part:
        (part / CONTENT).write_text(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
