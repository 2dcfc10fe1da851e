"""Made-up orders, which benchmarks of decoders have in JSON and in Avro."""

from __future__ import annotations

from typing import Any


def order(number: int, note: str) -> dict[str, Any]:
    """Return an order; each second one has the note."""
    return {
        "id": 1_000_000 + number,
        "customer": f"customer-{number % 5000:08d}-abcdefgh",
        "product": f"product-{number % 300:06d}-with-a-longer-name",
        "quantity": number % 90,
        "price": number / 7,
        "paid": number % 3 == 0,
        "note": None if number % 2 else note,
        "at": 1_790_000_000_000_000 + number * 1000,
    }


def more_fields(number: int, texts: int, numbers: int) -> dict[str, Any]:
    """Return more fields of an order: so many texts, s0 and on, and numbers, n0 and on."""
    made = {f"s{at}": f"{at}-{number}-lorem ipsum dolor sit amet, consect" for at in range(texts)}
    return made | {f"n{at}": number * 31 + at for at in range(numbers)}
