from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.unit.formats.protobuf.generated import compare
from tests.unit.formats.sanitized import require_clean

if TYPE_CHECKING:
    from pathlib import Path


def compared(seeds: range, values: int) -> Counter[str]:
    """Return how values of so many schemas came out."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += compare(Random(seed), values)
    return counts


def test_values_are_decoded_as_googles_reader_does() -> None:
    """Values of made-up messages, half of them damaged, become its rows, or are refused with it."""
    counts = compared(range(150), 30)
    assert counts["the same row"] > counts["the same refusal"] > 1000


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_million_values_are_decoded_as_googles_reader_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A million values of ten thousand messages come out as Google's, and are counted."""
    counts = compared(range(1000, 11_000), 101)
    with capsys.disabled():
        print(dict(counts))  # noqa: T201 - the count is what the run is for
    assert counts.total() == 1_000_000


#: Decodes made-up values with the library that is named first.
_SANITIZED = """
import sys
from pathlib import Path
from random import Random
from headrace.formats.native import library
import pyarrow as pa
library.PATH = Path(sys.argv[1])
from headrace.formats.protobuf import decoder
decoder.POOL = pa.system_memory_pool()
from tests.unit.formats.protobuf.generated import compare
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    compare(Random(seed), 40)
print("done")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sanitizers_find_nothing_in_any_value(tmp_path: Path) -> None:
    """No address outside of what is allocated is used, and nothing undefined is done."""
    require_clean(_SANITIZED, tmp_path, "0", "400")
