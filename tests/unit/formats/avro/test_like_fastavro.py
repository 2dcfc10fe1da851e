from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from headrace.formats.native import library
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


#: Decodes made-up values with the library that is named first.
_SANITIZED = """
import sys
from pathlib import Path
from random import Random
from headrace.core import columns
from headrace.formats.native import library
import pyarrow as pa
library.PATH = Path(sys.argv[1])
from headrace.formats.avro import decoder
decoder.POOL = pa.system_memory_pool()
from tests.unit.formats.avro.generated import compare
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    compare(Random(seed), 30)
print("done")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sanitizers_find_nothing_in_any_value(tmp_path: Path) -> None:
    """No address outside of what is allocated is used, and nothing undefined is done."""
    compiled = tmp_path / "libsanitized.so"
    options = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = sorted(library.PATH.parent.glob("*.c"))
    made = subprocess.run(
        ["cc", *options, "-shared", "-fPIC", "-o", compiled, *sources, "-lm"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"the compiler has no sanitizers: {made.stderr.strip()[-200:]}")
    sanitizers = [
        subprocess.check_output(["cc", f"-print-file-name=lib{name}.so"], text=True).strip()
        for name in ("asan", "ubsan")
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(sanitizers),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
    done = subprocess.run(
        [sys.executable, "-c", _SANITIZED, compiled, "0", "400"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=Path(__file__).parents[4],
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]
