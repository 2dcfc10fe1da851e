"""The commands that use the API, from options to an exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from difflib import get_close_matches
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, urlencode

import typer

from headrace.core.errors import ConfigError, HeadraceError, UnreachableError, UsageError
from headrace.core.processes import who
from headrace.health import UNWELL, ask
from headrace.ops.admin.client import AdminClient, AnswerError, ClientOptions, find, process_url
from headrace.ops.admin.document import restoring
from headrace.ops.admin.key_paths import place_of_key
from headrace.ops.admin.tables import show
from headrace.ops.admin.top import Top
from headrace.ops.console import (
    Column,
    figures,
    print_look,
    repeated,
    stdout_console,
    table_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_NOT_YET = 4

#: Keys that are asked for at a time.
_PAGE = 1000

Command: TypeAlias = Callable[[AdminClient], int]


def run(options: ClientOptions, command: Command) -> int:
    """Find the process, run a command with its API, and return the exit code."""
    try:
        with AdminClient(find(options)) as client:
            return command(client)
    except ConfigError as error:
        _complain(*error.problems)
        return EXIT_USAGE
    except UsageError as error:
        _complain(str(error))
        return EXIT_USAGE
    except UnreachableError as error:
        _complain(str(error))
        return EXIT_UNREACHABLE
    except HeadraceError as error:
        _complain(str(error))
        return EXIT_USAGE if _is_mistake(error) else EXIT_REFUSED
    except KeyboardInterrupt:
        return 0


def _is_mistake(error: HeadraceError) -> bool:
    """Return whether the process refused the words of the request themselves."""
    return isinstance(error, AnswerError) and error.status == HTTPStatus.UNPROCESSABLE_ENTITY


def health(file: Path, *, ready: bool, timeout: float) -> int:
    """Print how the process of a file is, and return the exit code."""
    try:
        return ask(process_url(file), ready=ready, timeout=timeout)
    except ConfigError as error:
        _complain(*error.problems)
        return EXIT_USAGE
    except UnreachableError as error:
        _complain(str(error))
        return UNWELL


def status(channel: str | None, *, as_json: bool, watch: float | None) -> Command:
    """Return what shows the status, once or every ``watch`` seconds."""

    def command(client: AdminClient) -> int:
        def look() -> int:
            found = client.get("/api/v1/status")
            chosen = found["channels"]
            if channel is not None:
                name = _require_channel(channel, chosen)
                chosen = [each for each in chosen if each["name"] == name]
            print_look(
                {**found, "channels": chosen},
                lambda console: show(found, chosen, console),
                as_json=as_json,
                every=watch,
            )
            _print_unusable(found)
            return 0

        return repeated(look, watch)

    return command


def top(*, every: float, partitions: int, once: bool, as_json: bool) -> Command:
    """Return what shows the channels in a table, once or every so many seconds."""

    def command(client: AdminClient) -> int:
        view = Top(stdout_console(), partitions=partitions)
        return view.run(client, every=every, once=once, as_json=as_json)

    return command


def _print_unusable(found: dict[str, Any]) -> None:
    """Print that the process runs with another configuration than its file has."""
    problems = (found["config"] or {}).get("problems")
    if problems:
        more = f" and {len(problems) - 1} more" if problems[1:] else ""
        _complain(
            f"{found['process']['config_file']} as it is now cannot be used, and what was read "
            f"before goes on: {problems[0]}{more}"
        )


def change(
    path: str, body: dict[str, Any], wait: float, *, as_json: bool, say: Callable[[Any], str]
) -> Command:
    """Return what asks for a change of the process; ``say`` puts the answer in words."""

    def command(client: AdminClient) -> int:
        answer = client.post(path, {**body, "by": who()}, wait)
        typer.echo(json.dumps(answer, indent=2) if as_json else say(answer))
        return EXIT_NOT_YET if answer.get("acknowledged") is False else 0

    return command


def reload(wait: float, *, as_json: bool) -> Command:
    """Return what has the configuration file taken up, and says what came of it."""

    def command(client: AdminClient) -> int:
        answer = client.post("/api/v1/reload", {"wait_s": wait, "by": who()}, wait)
        if as_json:
            typer.echo(json.dumps(answer, indent=2))
        else:
            _print_reload(answer)
        codes = {"rejected": EXIT_REFUSED, "partly": EXIT_NOT_YET, "under way": EXIT_NOT_YET}
        return codes.get(answer["outcome"], 0)

    return command


def _print_reload(answer: dict[str, Any]) -> None:
    typer.echo(answer["outcome"])
    for change in answer["applied"]:
        typer.echo(f"  {change['path']}: {change['before']} -> {change['after']}")
    for pending in answer["pending"]:
        typer.echo(f"  {pending['path']} is pending: {pending['reason']}")
    _complain(*answer["problems"])


def channel_change(
    action: str,
    channel: str | None,
    body: dict[str, Any],
    wait: float = 0.0,
    *,
    as_json: bool,
    say: Callable[[str, Any], str],
) -> Command:
    """Return what asks for a change of one channel: the one named, or the only one there is.

    Where ``body`` has a topic, the only one that reads it.
    """

    def command(client: AdminClient) -> int:
        name = _channel(client, channel, body.get("topic"))
        path = f"/api/v1/channels/{name}/{action}"
        ask = change(path, body, wait, as_json=as_json, say=lambda answer: say(name, answer))
        return ask(client)

    return command


def state_of_key(
    channel: str | None,
    key: str,
    *,
    partition: int | None,
    is_hex: bool,
    as_json: bool,
    stale: bool = False,
) -> Command:
    """Return what shows the state of a key; with ``stale`` that of a copy as well."""

    def command(client: AdminClient) -> int:
        name = _channel(client, channel, None, with_state=True)
        place, named = (quote(key, safe=""), {}) if is_hex else place_of_key(key)
        copies = "true" if stale else None
        query = _query(partition=partition, hex=is_hex or bool(named) or None, stale=copies)
        try:
            found = client.get(f"/api/v1/channels/{name}/state/{place}{query}")
        except AnswerError as error:
            if error.problem.get("error") != "restoring":
                raise
            _complain(str(error))
            return EXIT_NOT_YET
        print_key(found, as_json=as_json)
        return 0

    return command


def states(
    channel: str | None,
    prefix: str,
    limit: int,
    *,
    partition: int | None,
    is_hex: bool,
    as_json: bool,
) -> Command:
    """Return what lists keys with their states, page after page."""

    def command(client: AdminClient) -> int:
        name = _channel(client, channel, None, with_state=True)
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            query = _query(
                prefix=prefix,
                limit=min(limit - len(found), _PAGE),
                after=after,
                partition=partition,
                hex=is_hex or None,
            )
            page = client.get(f"/api/v1/channels/{name}/state{query}")
            found += page["keys"]
            after = page["next"]
            if after is None or len(found) >= limit:
                break
        print_keys(found, as_json=as_json)
        if after is not None:
            _complain(f"there are more; say --limit, which is {limit}, or --prefix")
        if page["elsewhere"]:
            _complain(f"{page['elsewhere']} partitions are not this process's; ask the others")
        for each in page["restoring"]:
            progress = each["progress"]
            said = restoring(progress["percent"], progress["left_s"])
            _complain(f"partition {each['partition']} is not in it: {said}")
        return EXIT_NOT_YET if page["restoring"] else 0

    return command


def tap(channel: str | None, **wanted: Any) -> Command:
    """Return what shows records as they pass; ``wanted`` is the request's, ``as_json`` ours."""
    as_json, hides_values = wanted.pop("as_json"), wanted.pop("no_values")

    def command(client: AdminClient) -> int:
        partition = wanted["partition"]
        topic = None if partition is None else partition.rpartition(":")[0]
        name = _channel(client, channel, topic)
        counts: dict[str, Any] = {}
        try:
            for line in client.lines(f"/api/v1/channels/{name}/tap{_query(**wanted, by=who())}"):
                if line["kind"] != "record":
                    counts = line
                    continue
                shown = {**line, "value": None, "value_hex": None} if hides_values else line
                typer.echo(json.dumps(shown) if as_json else _tapped(shown))
                sys.stdout.flush()
        finally:
            # also after Ctrl-C, as the last counts have it
            if counts:
                _complain(_tap_end(name, counts))
        return 0

    return command


def _tapped(record: dict[str, Any]) -> str:
    """Return a record in one line."""
    headers = " ".join(
        f"{name}={'-' if data is None else data}" for name, data in record["headers"]
    )
    parts = (
        f"{record['topic']}-{record['partition']}:{record['offset']}",
        record["time"] or "-",
        _data(record, "key"),
        _data(record, "value"),
        headers,
    )
    return _printable(" ".join(part for part in parts if part))


def _printable(text: str) -> str:
    """Return text that does nothing to a terminal, whatever a record has in it."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _data(record: dict[str, Any], name: str) -> str:
    if record[name] is not None:
        return str(record[name])
    return "-" if record[f"{name}_hex"] is None else f"0x{record[f'{name}_hex']}"


_TAP_ENDS = {
    "channel_ended": "the channel does not run any more",
    "process_stopping": "the process is stopping",
}


def _tap_end(channel: str, line: dict[str, Any]) -> str:
    """Return in words what became of the records."""
    left = [
        f"{line.get(name, 0)} {why}"
        for name, why in (
            ("over_rate", "over the rate"),
            ("unseen", "not looked at for their key"),
            ("dropped", "dropped, because they were not read fast enough"),
        )
        if line.get(name)
    ]
    ended = _TAP_ENDS.get(line.get("reason") or "")
    said = f"{line.get('shown', 0)} of {line.get('passed', 0)} records that passed {channel} shown"
    return "; ".join([said, *left, *([ended] if ended else [])])


def _query(**given: object) -> str:
    """Return the query of what is given."""
    chosen = {name: value for name, value in given.items() if value is not None}
    return f"?{urlencode(chosen)}" if chosen else ""


def print_key(found: dict[str, Any], *, as_json: bool) -> None:
    """Print one key as the API has it."""
    if as_json:
        typer.echo(json.dumps(found))
        return
    place = [f"partition {found['partition']}"]
    if (copy := found.get("standby")) is not None:
        place.append(describe_copy(copy))
    if found["offset"] is not None:
        place.append(f"of the records before offset {found['offset']}")
    elif offsets := found["offsets"]:
        before = " and ".join(f"{offset} of {topic}" for topic, offset in sorted(offsets.items()))
        place.append(f"of the records before {before}")
    if found["stream_time"] is not None:
        place.append(f"stream time {found['stream_time']}")
    typer.echo(f"{found['key']} · {' · '.join(place)}")
    typer.echo(_compact(found["state"]))
    for timer in found["timers"]:
        typer.echo(f"timer {timer['name']}: {timer['due']} ({timer['clock']})")
    if found["quarantined"] is not None:
        typer.echo(f"in quarantine: {found['quarantined']}")
    if found["problem"] is not None:
        typer.echo(f"shown in base64: {found['problem']}")


def describe_copy(standby: Mapping[str, Any]) -> str:
    """Return in words how far a copy of another member's partition is."""
    lag = "unknown how far" if standby["lag"] is None else f"{standby['lag']} offsets"
    return f"a copy as of offset {standby['position']} of the changelog, {lag} behind"


def print_keys(found: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    """Print keys as the API has them."""
    if as_json:
        for each in found:
            typer.echo(json.dumps(each))
        return
    stdout_console().print(table_of(found, _KEYS))


_KEYS: tuple[Column[dict[str, Any]], ...] = (
    *figures(partition="partition"),
    Column("key", lambda each: each["key"] + (" (in quarantine)" * bool(each["quarantined"]))),
    Column("state", lambda each: _compact(each["state"])),
    Column(
        "timers", lambda each: ", ".join(f"{one['name']} {one['due']}" for one in each["timers"])
    ),
)


def _compact(state: object) -> str:
    return json.dumps(state, ensure_ascii=False, separators=(",", ":"))


def _channel(
    client: AdminClient, channel: str | None, topic: str | None, *, with_state: bool = False
) -> str:
    found = client.get("/api/v1/channels")["channels"]
    if with_state and channel is None:
        found = [each for each in found if _keeps_rows(each)]
        if not found:
            raise UsageError("no channel of the process keeps state by key; see headrace status")
    if channel is not None:
        return _require_channel(channel, found)
    fitting = [each["name"] for each in found if topic is None or topic in each["topics"]]
    if len(fitting) == 1:
        return str(fitting[0])
    if not fitting and topic is not None:
        topics = sorted({name for each in found for name in each["topics"]})
        raise UsageError(f"no channel reads {topic}{_suggest_near(topic, topics)}")
    if not fitting:
        raise UsageError("the process has no channel yet; see headrace status")
    raise UsageError(f"there are several channels; name one of {', '.join(fitting)}")


def _keeps_rows(channel: dict[str, Any]) -> bool:
    """Return whether a channel has state that a command may be about."""
    # parts of topologies may have no store; a process of a former version does not say which
    operators = (channel.get("state_by_key") or {}).get("operators")
    if channel["processor"] == "streams" and operators is not None:
        return any(each["store"] is not None for each in operators)
    return channel["processor"] in {"keyed", "streams"}


def _require_channel(channel: str, found: Sequence[dict[str, Any]]) -> str:
    names = [str(each["name"]) for each in found]
    if channel in names:
        return channel
    raise UsageError(f"there is no channel {channel}{_suggest_near(channel, names)}")


def _suggest_near(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; choose from {', '.join(known)}" if known else ""


def _complain(*lines: str) -> None:
    for line in lines:
        typer.echo(line, err=True)
