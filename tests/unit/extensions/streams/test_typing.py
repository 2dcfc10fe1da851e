"""Programs as a type checker sees them, without a plug-in."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAMS = Path(__file__).with_name("programs.py")

_CONFIG = """
[mypy]
strict = True
python_version = 3.11
follow_imports = silent
[mypy-pyarrow.*,confluent_kafka.*]
ignore_missing_imports = True
"""

#: A line that Pyright takes: the reducer's rows and those that are said have a union in common.
_OF_A_UNION = "orders.reduce(reduce"

#: Each line with a comment is a mistake, and the comment is what the checker calls it.
WRONG = dedent("""
    from __future__ import annotations

    from headrace.extensions.keyed.api import Event, Fired, Timer
    from headrace.extensions.streams.aggregates import count, mean, top, total
    from headrace.extensions.streams.expressions import key, when
    from headrace.extensions.streams.rows import Field, Row
    from headrace.extensions.streams.topology import Topology

    class Order(Row):
        id: Field[str]
        amount: Field[float]
        count: Field[int | None]

    class Sum(Row):
        id: Field[str]
        n: Field[int]

    Found = tuple[int, list[Sum], dict[str, Timer]]

    def reduce(key: str, state: int, facts: list[Event[Order] | Fired], now: int) -> Found:
        return state, [], {}

    app = Topology()
    orders = app.stream("orders", Order)
    orders.reduce(reduce, name="r", rows=Order)  # arg-type
    orders.filter(Order.amunt > 10.0)  # attr-defined
    orders.filter(Order.id > 10)  # operator
    orders.filter(Order.id)  # arg-type
    orders.group_by(Order.id)  # call-arg
    orders.key_by(Order.id)  # call-arg
    total(Order.id)  # type-var
    Order.id + 1  # operator
    Order.id.slice("a")  # arg-type
    Order.amount.lower()  # misc
    Order.amount % 2  # operator
    Order.count.or_else("a")  # arg-type
    when(Order.amount, 1, 2)  # arg-type
    ~Order.id  # misc
    orders.join(app.table("t", Sum, name="t"), Sum, name="j", within="1m", id=key, n=1)  # arg-type
    orders.map(lambda row: row.amunt, Sum)  # attr-defined
    orders.final()  # attr-defined
    Order(id="a", amount="b", count=None)  # arg-type
    Order(id="a", count=None)  # call-arg
    text: int = Order(id="a", amount=1.0, count=None).id  # assignment
""")


def _mistakes() -> dict[int, str]:
    """Return the lines that are wrong by number, each with what the checker calls it."""
    return {
        number: line.rpartition("# ")[2]
        for number, line in enumerate(WRONG.splitlines(), 1)
        if "  # " in line
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[tuple[int, str]]]:
    """Return the errors of each file, by line and code; both files are checked at once."""
    # the environment of the fast tests does not have it
    from mypy import api  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("typing")
    (folder / "mypy.ini").write_text(_CONFIG, encoding="utf-8")
    wrong = folder / "wrong.py"
    wrong.write_text(WRONG, encoding="utf-8")
    options = ["--config-file", str(folder / "mypy.ini"), "--cache-dir", str(folder / "cache")]
    report, problems, _ = api.run([*options, "--no-error-summary", str(wrong), str(PROGRAMS)])
    assert problems == ""
    errors: dict[str, set[tuple[int, str]]] = {"wrong.py": set(), "programs.py": set()}
    for file, line, code in re.findall(
        r"^(\S+):(\d+): error: .*\[([a-z-]+)\]$", report, re.MULTILINE
    ):
        errors[Path(file).name].add((int(line), code))
    return errors


@pytest.mark.slow
def test_a_type_checker_passes_the_programs(found: Mapping[str, set[tuple[int, str]]]) -> None:
    """The programs have no error in strict mode."""
    assert found["programs.py"] == set()


@pytest.mark.slow
def test_a_type_checker_finds_each_mistake(found: Mapping[str, set[tuple[int, str]]]) -> None:
    """Each line that is wrong has an error, and no other line has one."""
    assert found["wrong.py"] == set(_mistakes().items())


@pytest.fixture(scope="module")
def seen_by_pyright(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[int]]:
    """Return the lines of each file in which Pyright finds an error; both are checked at once."""
    if find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    folder = tmp_path_factory.mktemp("pyright")
    (folder / "wrong.py").write_text(WRONG, encoding="utf-8")
    (folder / "programs.py").write_text(PROGRAMS.read_text(encoding="utf-8"), encoding="utf-8")
    settings = {
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
        "extraPaths": [str(Path(__file__).parents[4])],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson"]
    command += ["--project", str(folder), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    errors: dict[str, set[int]] = {"wrong.py": set(), "programs.py": set()}
    for each in report["generalDiagnostics"]:
        if each["severity"] == "error":
            errors[Path(each["file"]).name].add(each["range"]["start"]["line"] + 1)
    return errors


@pytest.mark.slow
def test_pyright_passes_the_programs(seen_by_pyright: Mapping[str, set[int]]) -> None:
    """The programs have no error, without a plug-in."""
    assert seen_by_pyright["programs.py"] == set()


@pytest.mark.slow
def test_pyright_finds_each_mistake(seen_by_pyright: Mapping[str, set[int]]) -> None:
    """Each line that is wrong has an error but one, and no other line has one."""
    lines = WRONG.splitlines()
    (of_a_union,) = (at for at, line in enumerate(lines, 1) if line.startswith(_OF_A_UNION))
    assert seen_by_pyright["wrong.py"] == _mistakes().keys() - {of_a_union}
