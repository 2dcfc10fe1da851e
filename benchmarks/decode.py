"""Values decoded to columns, beside what reads the same values and nothing else.

JSON of about 200 and 900 bytes is decoded to all of its fields, and beside it by a loop of
``orjson.loads``, which leaves a dictionary each. Avro of about 110 and 730 bytes is decoded beside
pyruhvro, with and without bad values. The time is this process's processor time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks.avro_values import TARGETS as AVRO_TARGETS
from benchmarks.avro_values import AvroValues
from benchmarks.orders import more_fields, order
from benchmarks.report import Report, say
from benchmarks.rounds import SHORTEST, alternate
from headrace.core.memory import limit_memory
from headrace.core.tables import Decode, Decoding, OnUndecodable
from headrace.extensions.arrow.decode import ArrowDecoder
from headrace.testing import records_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.rounds import Measured

#: How fast JSON has to be beside the loop of orjson.
TARGETS = {"ratio_to_orjson_200b": 1.0, "ratio_to_orjson_900b": 0.75}

_SMALL = {
    "id": "BIGINT",
    "customer": "STRING",
    "product": "STRING",
    "quantity": "INT",
    "price": "DOUBLE",
    "paid": "BOOLEAN",
    "note": "STRING",
    "at": "BIGINT",
}
_TEXTS, _NUMBERS = 10, 12
_LARGE = {
    **_SMALL,
    **{f"s{number}": "STRING" for number in range(_TEXTS)},
    **{f"n{number}": "BIGINT" for number in range(_NUMBERS)},
}

#: One of so many values is none of the schema, where bad ones are measured.
_BAD = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """What is decoded: batches of ``records``, in rounds of about ``seconds`` a side."""

    rounds: int = 3
    records: int = 50_000
    seconds: float = SHORTEST


def small(number: int) -> dict[str, Any]:
    """Return a document of about 200 bytes."""
    return order(number, "leave it at the door, and ring twice")


def large(number: int) -> dict[str, Any]:
    """Return a document of about 900 bytes."""
    return small(number) | more_fields(number, _TEXTS, _NUMBERS)


def run(plan: Plan | None = None) -> Report:
    """Compare, round by round. Blocks for about a minute."""
    plan = plan or Plan()
    limit_memory()  # as the daemon does
    figures: dict[str, Any] = {}
    by_round: dict[str, list[float]] = {}
    for name, document, columns in (("200b", small, _SMALL), ("900b", large, _LARGE)):
        values = [orjson.dumps(document(number)) for number in range(plan.records)]
        sides = {
            "columns": _decoding(plan, values, columns),
            "orjson": _reading(plan, values),
        }
        if name == "200b":
            bad = [b"{" if at % _BAD == 0 else value for at, value in enumerate(values)]
            sides["with_bad"] = _decoding(plan, bad, columns)
        rounds = alternate(sides, plan.rounds, say=partial(_say, name))
        ratio = f"json_ratio_to_orjson_{name}"
        by_round[ratio] = rounds.ratios("columns", "orjson", "rate")
        figures |= {
            ratio: round(rounds.ratio("columns", "orjson", "rate"), 2),
            f"{ratio}_target": TARGETS[f"ratio_to_orjson_{name}"],
            f"json_{name}_records_per_cpu_s": round(rounds.median("columns", "rate")),
            f"json_{name}_bytes": round(sum(map(len, values)) / len(values)),
            **{f"json_{name}_{side}_rates": rounds.values(side, "rate") for side in sides},
        }
        if "with_bad" in sides:
            cost = f"json_cost_of_bad_{name}"
            by_round[cost] = rounds.ratios("columns", "with_bad", "rate")
            figures[cost] = round(rounds.ratio("columns", "with_bad", "rate"), 2)
    avro, avro_by_round = _avro(plan)
    figures |= avro
    by_round |= avro_by_round
    return Report("decode", {**figures, "rounds": plan.rounds, "records": plan.records}, by_round)


def _avro(plan: Plan) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Return the figures of Avro, and the ratios of each round."""
    figures: dict[str, Any] = {f"{name}_target": target for name, target in AVRO_TARGETS.items()}
    by_round: dict[str, list[float]] = {}
    for size, suffix in (("110b", ""), ("730b", "_730b")):
        values = AvroValues.of(size, plan.records)
        sides = {
            "columns": _repeated(plan, values.ours()),
            "with_bad": _repeated(plan, values.with_bad().ours()),
            "pyruhvro": _repeated(plan, values.pyruhvro()),
        }
        rounds = alternate(sides, plan.rounds, say=partial(_say, f"avro {size}"))
        figures[f"avro{suffix}_records_per_cpu_s"] = round(rounds.median("columns", "rate"))
        figures[f"avro{suffix}_bytes"] = values.mean_size
        for name, other in (("ratio_to_pyruhvro", "pyruhvro"), ("cost_of_bad", "with_bad")):
            by_round[f"avro{suffix}_{name}"] = rounds.ratios("columns", other, "rate")
            figures[f"avro{suffix}_{name}"] = round(rounds.ratio("columns", other, "rate"), 2)
        for side in sides:
            figures[f"avro{suffix}_{side}_rates"] = rounds.values(side, "rate")
    return figures, by_round


def _say(name: str, line: str) -> None:
    say(f"{name} {line}")


def _decoding(plan: Plan, values: list[bytes], columns: dict[str, str]) -> Callable[[], Measured]:
    """Return a round of the decoder of channels of type arrow; bad values are left out."""
    ddl = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    decoder = ArrowDecoder(Decode(Decoding.JSON, ddl, OnUndecodable.SKIP))
    table = records_table(values)
    return _repeated(plan, lambda: decoder.apply(table))


def _reading(plan: Plan, values: list[bytes]) -> Callable[[], Measured]:
    """Return a round of the bare loop, whose dictionaries are dropped."""
    return _repeated(plan, lambda: [orjson.loads(value) for value in values])


def _repeated(plan: Plan, decode: Callable[[], object]) -> Callable[[], Measured]:
    """Return a round that decodes the same batch again and again."""

    def measure() -> Measured:
        count, began, before = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < plan.seconds:
            decode()
            count += plan.records
        own = time.process_time() - before
        return {
            "records": count,
            "seconds": round(time.perf_counter() - began, 3),
            "own": round(own, 3),
            "rate": round(count / own),
        }

    return measure
