"""Values of all types in the states of a channel: a restart changes nothing that comes out."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.extras import Extra
from headrace.core.letter_headers import LetterHeaders
from headrace.extensions.streams.rows import field
from headrace.extensions.streams.runtime.tasks import RejectRules
from headrace.streams import (
    Field,
    Row,
    Topology,
    approx_distinct,
    approx_quantile,
    approx_quantiles,
    collect,
    distinct,
    first,
    hopping,
    key,
    last,
    least,
    mean,
    most,
    session,
    sliding,
    top,
    total,
    tumbling,
)
from tests.unit.extensions.streams.test_fold import InMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.unit.extensions.streams.test_fold import Record

SKIP = RejectRules(LetterHeaders("headrace", "g"), "skip")


class Inner(Row):
    at: Field[datetime | None]
    price: Field[Decimal | None] = field(scale=3)
    tags: Field[list[float] | None]


class Fact(Row):
    text: Field[str | None]
    whole: Field[int | None]
    real: Field[float | None]
    flag: Field[bool | None]
    at: Field[datetime | None]
    price: Field[Decimal | None] = field(scale=3)
    words: Field[list[str] | None]
    times: Field[list[datetime] | None]
    reals: Field[list[float] | None]
    prices: Field[list[Decimal] | None] = field(scale=3)
    inner: Field[Inner | None]
    inners: Field[list[Inner] | None]


FIELDS: dict[str, Any] = {name: getattr(Fact, name) for name in Fact.__fields__}
SCALARS = ["text", "whole", "real", "flag", "at", "price"]
NUMBERS = ["whole", "real", "price"]

AGGREGATES: dict[str, tuple[Any, list[str]]] = {
    "total": (total, NUMBERS),
    "mean": (mean, NUMBERS),
    "least": (least, SCALARS),
    "most": (most, SCALARS),
    "first": (first, list(FIELDS)),
    "last": (last, list(FIELDS)),
    "collect": (lambda of: collect(of, limit=3), list(FIELDS)),
    "distinct": (lambda of: distinct(of, limit=3), SCALARS),
    "top": (lambda of: top(3, by=of, of=of), SCALARS),
    "quantiles": (lambda of: approx_quantiles(of, [0, 0.5, 1]), NUMBERS),
    "quantile": (lambda of: approx_quantile(of, 0.9), NUMBERS),
    "top of whole": (lambda of: top(3, by=Fact.real, of=of), list(FIELDS)),
}

WINDOWS: dict[str, Any] = {
    "groups": None,
    "tumbling": tumbling("10s", grace="5s"),
    "hopping": hopping("10s", every="4s", grace="5s"),
    "sliding": sliding("4s", grace="5s"),
    "session": session("3s", grace="5s"),
}

if Extra.DISTINCT.installed:
    AGGREGATES["approximate"] = (approx_distinct, SCALARS)

CASES = [(name, of) for name, (_, fields) in AGGREGATES.items() for of in fields]


#: The types of values that are not those of the field.
OTHER: dict[str, Any] = {
    "mean": float,
    "quantile": float,
    "quantiles": float,
    "approximate": int,
}
LISTS = {"collect", "distinct", "quantiles", "top", "top of whole"}


def result_row(name: str, of: str) -> type[Row]:
    """Return a class of rows with one field of an aggregate's type."""
    kind: Any = (
        OTHER.get(name)
        or {
            "text": str,
            "whole": int,
            "real": float,
            "flag": bool,
            "at": datetime,
            "price": Decimal,
            "words": list[str],
            "times": list[datetime],
            "reals": list[float],
            "prices": list[Decimal],
            "inner": Inner,
            "inners": list[Inner],
        }[of]
    )
    annotation = Field[list[kind]] if name in LISTS else Field[kind | None]
    scale = 3 if "Decimal" in str(annotation) else None
    return type(
        "Found",
        (Row,),
        {
            "__annotations__": {"value": annotation},
            "value": field(scale=scale),
            "__module__": __name__,
        },
    )


def program(name: str, of: str, kind: str, key_type: type = str) -> Topology:
    """Return a topology with one aggregate of one field, which comes out in all ways there are."""
    make, _ = AGGREGATES[name]
    row = result_row(name, of)
    app = Topology()
    grouped: Any = app.stream("facts", Fact, key=key_type).group_by(key, name="found")
    windows = WINDOWS[kind]
    if windows is not None:
        grouped = grouped.window(windows)
    table = grouped.agg(row, value=make(FIELDS[of]))
    table.updates().to("updates")
    table.each().to("each")
    if windows is not None:
        table.final().to("final")
    return app


TEXTS = [
    "",
    '"',
    "a\nb",
    "\x00",
    "a\x00b",
    "key/with/slash",
    "é",
    "\U0001f600",
    "\\",
    "null",
    "\u2028",
]
WHOLE = [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**62]
REAL = ["0.0", "-0.0", "1e308", "-1e308", "5e-324", "0.1", "1e999", "-1e999", "3"]
AT = [
    "1969-12-31T23:59:59.999999Z",
    "2024-02-29T12:00:00.000001Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "2024-01-01T00:00:00+02:00",
]
_MOST = "9" * 35 + ".999"
PRICE = ["0.000", "-0.001", _MOST, "1.5", f"-{_MOST}", "0.001"]


def value(random: Random) -> bytes:
    """Return a record's value in JSON, some of whose fields are null."""

    def some(known: Sequence[Any], *, quoted: bool = True) -> str:
        found = json.dumps(random.choice(known)) if quoted else random.choice(known)
        return str(found)

    def several(known: Sequence[Any], *, quoted: bool = True) -> str:
        return f"[{','.join(some(known, quoted=quoted) for _ in range(random.randrange(3)))}]"

    members = {
        "text": some(TEXTS),
        "whole": some(WHOLE),
        "real": some(REAL, quoted=False),
        "flag": some([True, False]),
        "at": some(AT),
        "price": some(PRICE),
        "words": several(TEXTS),
        "times": several(AT),
        "reals": several(REAL, quoted=False),
        "prices": several(PRICE),
    }
    inner = f'{{"at":{some(AT)},"price":{some(PRICE)},"tags":{members["reals"]}}}'
    members["inner"] = inner
    members["inners"] = f"[{inner},{{}}]"
    said = (
        f'"{name}":{random.choice([text, text, text, "null"])}' for name, text in members.items()
    )
    return f"{{{','.join(said)}}}".encode()


KEYS: dict[type, list[bytes]] = {
    str: [b"", b"a", b"a/b", b'"', b"\x00", b"\n", "é".encode(), b"found/0"],
    int: [b"0", b"-1", b"9223372036854775807", b"-9223372036854775808"],
    bytes: [b"", b"\xff\xfe", b"/", b"\x00\x00", b"a"],
}


def _key_of(record: Record) -> bytes:
    return record[0] or b""


def by_key(written: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """Return what was written, in its order by key; updates of a commit have none."""
    return {
        topic: sorted(found, key=repr if topic == "updates" else _key_of)
        for topic, found in written.items()
    }


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize(("name", "of"), CASES)
def test_a_restart_after_each_commit_changes_nothing(name: str, of: str, kind: str) -> None:
    """All that is written, and the rows at the end, are those of a channel that runs on."""
    random = Random(f"{name} {of} {kind}")
    key_type = random.choice(list(KEYS))
    now, batches = 0, []
    for _ in range(4):
        records: list[Record] = []
        for _ in range(random.randrange(1, 8)):
            now += random.choice([0, 1, 2500, 11_000])
            records.append((random.choice(KEYS[key_type]), value(random), now))
        batches.append(records)
    runs = []
    for restarts in (False, True):
        plan = program(name, of, kind, key_type).plan("shop")
        run = InMemory(plan, plan.channels[0], SKIP)
        for some in batches:
            if restarts:
                run.restart()
            run.run("facts", some)
        runs.append(run)
    one, other = runs
    assert by_key(one.written) == by_key(other.written)
    assert one.rows("found") == other.rows("found")
    assert [each.rejected for each in one.counts] == [each.rejected for each in other.counts]
