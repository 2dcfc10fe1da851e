from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.unit.formats.avro.generated import compare


def compared(seeds: range, values: int) -> Counter[str]:
    """Return how values of so many pairs of schemas came out."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += compare(Random(seed), values)
    return counts


def test_values_are_decoded_as_fastavro_does() -> None:
    """Values of made-up schemas become fastavro's rows, or are refused where it refuses them."""
    counts = compared(range(150), 20)
    assert counts["the same row"] > 10 * counts["stricter"]
    assert counts["the same refusal"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_million_values_are_decoded_as_fastavro_does(capsys: pytest.CaptureFixture[str]) -> None:
    """A million values of ten thousand pairs of schemas come out as fastavro's, and are counted."""
    counts = compared(range(1000, 11_000), 100)
    with capsys.disabled():
        print(dict(counts))  # noqa: T201 - the count is what the run is for
    assert counts.total() == 1_000_000
    assert counts["stricter"] < counts["the same row"] / 10
