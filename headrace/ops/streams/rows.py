"""Rows of a store as the process of a topology has them, for people and scripts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import typer

from headrace.ops.admin.client import AnswerError
from headrace.ops.admin.commands import EXIT_NOT_YET, describe_copy
from headrace.ops.admin.document import restoring
from headrace.ops.admin.key_paths import place_of_key
from headrace.ops.console import Column, figures, stdout_console, table_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.ops.admin.client import AdminClient
    from headrace.ops.admin.commands import Command

#: Rows that are asked for at a time.
_PAGE = 1000


def rows_of_key(
    topology: str, store: str, key: str, *, as_json: bool, **wanted: str | int | None
) -> Command:
    """Return what shows the row of a key, or its windows; ``wanted`` is the request's query."""

    def command(client: AdminClient) -> int:
        place, named = place_of_key(key)
        path = f"{_path(topology, store)}/{place}{_query({**wanted, **named})}"
        try:
            found = client.get(path)
        except AnswerError as error:
            if error.problem.get("error") != "restoring":
                raise
            typer.echo(str(error), err=True)
            return EXIT_NOT_YET
        if not as_json:
            typer.echo(f"{key} · {_place(found['position'])}")
        _print(found["rows"], as_json=as_json)
        return 0

    return command


def rows_of_store(
    topology: str, store: str, limit: int, *, as_json: bool, **wanted: str | int | None
) -> Command:
    """Return what lists rows of a store, page after page; ``wanted`` is the request's query."""

    def command(client: AdminClient) -> int:
        found: list[dict[str, Any]] = []
        copies: dict[int, str] = {}
        after: str | None = None
        while True:
            size = min(limit - len(found), _PAGE)
            query = _query({**wanted, "limit": size, "after": after})
            page = client.get(f"{_path(topology, store)}{query}")
            found += page["rows"]
            for each in page["positions"]:
                if each.get("standby") is not None:
                    copies[each["partition"]] = describe_copy(each["standby"])
            after = page["next"]
            if after is None or len(found) >= limit:
                break
        _print(found, as_json=as_json)
        if after is not None:
            typer.echo(f"there are more; say --limit, which is {limit}, or --prefix", err=True)
        if page["elsewhere"] and wanted.get("partition") is None:
            said = f"{page['elsewhere']} partitions are not this process's; ask the others"
            typer.echo(said, err=True)
        for number, said in copies.items():
            typer.echo(f"partition {number} is another member's: {said}", err=True)
        for each in page["restoring"]:
            progress = each["progress"]
            said = restoring(progress["percent"], progress["left_s"])
            typer.echo(f"partition {each['partition']} is not in it: {said}", err=True)
        return EXIT_NOT_YET if page["restoring"] else 0

    return command


def _path(topology: str, store: str) -> str:
    return f"/api/v1/topologies/{quote(topology, safe='')}/stores/{quote(store, safe='')}"


def _query(wanted: Mapping[str, str | int | None]) -> str:
    chosen = {name: value for name, value in wanted.items() if value is not None}
    return f"?{urlencode(chosen)}" if chosen else ""


def _place(position: Mapping[str, Any]) -> str:
    """Return in words of which records rows are."""
    said = [f"partition {position['partition']}"]
    if position.get("standby") is not None:
        said.append(describe_copy(position["standby"]))
    if offsets := position["offsets"]:
        before = " and ".join(f"{offset} of {topic}" for topic, offset in sorted(offsets.items()))
        said.append(f"of the records before {before}")
    if position["operator_time"] is not None:
        said.append(f"operator time {position['operator_time']}")
    return " · ".join(said)


def _print(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for each in rows:
            typer.echo(json.dumps(each))
        return
    columns = [each for each in _ROWS if each.title != "window" or _has_windows(rows)]
    stdout_console().print(table_of(rows, columns))


def _has_windows(rows: list[dict[str, Any]]) -> bool:
    return any(each["window"] is not None for each in rows)


def _window(row: dict[str, Any]) -> str:
    window = row["window"]
    return "-" if window is None else f"{window['start']} to {window['end']}"


def _shown(row: dict[str, Any]) -> str:
    """Return a row as its operator writes it, or why it is none, and when timers are due."""
    text = row["problem"] or json.dumps(row["row"], ensure_ascii=False, separators=(",", ":"))
    timers = ", ".join(f"timer {each['name']} {each['due']}" for each in row["timers"])
    return f"{text} · {timers}" if timers else str(text)


_ROWS: tuple[Column[dict[str, Any]], ...] = (
    *figures(partition="partition"),
    Column("key", lambda each: each["key"]),
    Column("window", _window),
    Column("row", _shown),
)
