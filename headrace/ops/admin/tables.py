"""The status as tables for a terminal."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from rich.text import Text

from headrace.ops.admin.document import restoring
from headrace.ops.console import Column, duration, figures, numeric, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console

_STYLES = {
    "running": "green",
    "waiting": "green",
    "connected": "green",
    "active": "green",
    "paused": "yellow",
    "away": "yellow",
    "backing_off": "red",
    "suspended": "red",
    "failed": "red",
    "lost": "red",
}


def show(status: dict[str, Any], channels: list[dict[str, Any]], console: Console) -> None:
    """Print the process and some of its channels."""
    process, spark = status["process"], status["spark"]
    head = Text.assemble(
        (process["instance_id"], "bold"),
        f" · {process['phase']} for {duration(process['uptime_s'])} · pid {process['pid']}"
        f" · version {process['version']} · ZooKeeper ",
        state_word(status["zookeeper"]["state"]),
    )
    if spark is not None:
        head.append(" · Spark ")
        head.append_text(state_word(_spark_state(spark)))
    console.print(head)
    for reason in status["not_ready_because"]:
        console.print(Text(f"not ready: {reason}", style="red"))
    for channel in channels:
        console.print()
        _show_channel(channel, console)


def _spark_state(spark: dict[str, Any]) -> str:
    if spark["running"]:
        return "running"
    return "failed" if spark["generation"] else "starting"


def _show_channel(channel: dict[str, Any], console: Console) -> None:
    totals, member = channel["totals"], channel["member"]
    console.print(
        Text.assemble(
            (channel["name"], "bold"),
            " · ",
            state_word(channel["state"]),
            f" · group {channel['group']} (",
            state_word(member["state"]),
            f") · {totals['records_per_s']:g} records/s · lag {totals['lag']} · "
            f"{_catches_up(totals)}{channel['delivery']}",
        )
    )
    if channel["failure"]:
        console.print(Text(f"failed: {channel['failure']}", style="red"))
    for pause in channel["pauses"]:
        console.print(Text(_pause(pause), style="yellow"))
    for line in _numbers(channel):
        console.print(line, highlight=False)
    # a process of a former version has none
    if operators := (channel.get("state_by_key") or {}).get("operators"):
        console.print(table_of(operators, OPERATORS))
    if channel["partitions"]:
        console.print(table_of(channel["partitions"], _PARTITIONS))
    if standbys := (channel.get("state_by_key") or {}).get("standbys"):
        console.print(table_of(standbys, STANDBYS))


def catch_up(lag: int, seconds: float | None, per_s: float) -> Text:
    """Return in a few characters when a lag will be gone, or that it does not get less."""
    if not lag or seconds == 0:
        return Text("-")
    if seconds is not None:
        return Text(f"in {duration(seconds)}")
    return Text("falls back", style="red") if per_s > 0 else Text("no", style="yellow")


def _catches_up(totals: dict[str, Any]) -> str:
    seconds, per_s = totals.get("catch_up_s"), totals.get("lag_per_s", 0.0)
    if not totals["lag"] or seconds == 0:
        return ""
    if seconds is not None:
        return f"catches up in {duration(seconds)} · "
    return f"falls back by {per_s:g} records/s · " if per_s > 0 else ""


def _numbers(channel: dict[str, Any]) -> Iterable[str]:
    """Yield what there is to say of overflow, of keys by phase, and of a pool."""
    if overflow := channel["totals"]["overflow_records"]:
        yield f"overflow: {overflow} records"
    if enforced := channel["totals"].get("enforced"):
        yield f"enforced: {enforced} pieces of work did not wait for all topics"
    rejects = channel.get("rejects") or {}
    kinds = ("dead_letters", "skipped_records", "rejected_facts")
    if said := [f"{kind.replace('_', ' ')} {rejects[kind]}" for kind in kinds if rejects.get(kind)]:
        yield f"not acknowledged: {' · '.join(said)}"
    # a process of a former version has neither
    state, pool = channel.get("state_by_key") or {}, channel.get("pool")
    if phases := state.get("phases"):
        yield "keys: " + " · ".join(map(_phase, phases))
    if numbers := [*state.get("amounts", {}).items(), *state.get("counts", {}).items()]:
        yield " · ".join(f"{name.replace('_', ' ')} {number}" for name, number in numbers)
    if pool is not None:
        ended = [f"{outcome.replace('_', ' ')} {count}" for outcome, count in pool["ended"].items()]
        busy = f"pool: {pool['busy']} of {pool['threads']} threads busy"
        left = [f"left to calls that hang {count}"] if (count := pool.get("left")) else []
        yield " · ".join([busy, *left, f"waiting {pool['waiting']}", *ended])


def _count_of(name: str) -> Callable[[dict[str, Any]], str | None]:
    return lambda each: None if each[name] is None else f"{each[name]:,}"


def _time_lag(each: dict[str, Any]) -> str | None:
    lag = each["operator_time_lag_s"]
    return None if lag is None else duration(lag)


#: Of an operator of a topology: what is no figure of it is left empty.
OPERATORS: tuple[Column[dict[str, Any]], ...] = (
    Column("operator", lambda each: f"{each['kind'].replace('_', ' ')} {each['name']}"),
    numeric("records", _count_of("records")),
    numeric("late", _count_of("late")),
    numeric("alone", _count_of("alone")),
    numeric("closed", _count_of("closed")),
    numeric("skipped", _count_of("skipped")),
    numeric("rows", _count_of("rows")),
    numeric("bytes", _count_of("bytes")),
    numeric("time lag", _time_lag),
)


#: Of the copy of another member's partition.
STANDBYS: tuple[Column[dict[str, Any]], ...] = (
    Column("standby of", lambda each: f"partition {each['partition']}"),
    *figures(position="position"),
    numeric("behind", _count_of("lag")),
    Column("note", itemgetter("problem"), style="yellow"),
)


def _phase(phase: dict[str, Any]) -> str:
    oldest = phase["oldest_s"]
    age = "" if oldest is None else f" (oldest {duration(oldest)})"
    return f"{phase['name']} {phase['keys']}{age}"


def _pause(pause: dict[str, Any]) -> str:
    scope = "" if pause["topic"] is None else f"{partition_name(pause)} "
    until = "" if pause["until"] is None else f" until {pause['until']}"
    note = f": {pause['note']}" if pause["note"] else ""
    what = f"paused ({pause['reason']}, {pause['mode']}) by {pause['by']}"
    return f"{scope}{what} since {pause['since']}{until}{note}"


def partition_name(each: dict[str, Any]) -> str:
    """Return a partition as commands name it."""
    return f"{each['topic']}-{each['partition']}"


_PARTITIONS: tuple[Column[dict[str, Any]], ...] = (
    Column("partition", partition_name),
    Column("state", lambda each: state_word(each["state"])),
    *figures(epoch="epoch", position="position", batch="batch_offset"),
    *figures(committed="committed", end="end", lag="lag"),
    numeric("records/s", lambda each: f"{each['records_per_s']:g}"),
    Column("note", lambda each: "; ".join(_notes(each)), style="yellow"),
)


def _notes(each: dict[str, Any]) -> Iterable[str]:
    if (found := each.get("restoring")) is not None:
        yield restoring(found["percent"], found["left_s"])
    if each["attempts"]:
        yield (
            f"{batch_of(each)} failed {each['attempts']} times, "
            f"again at {each['held_back_until'] or 'once'}"
        )
        yield str(each["last_error"])
    if each["suspect_records"]:
        yield f"looks for what fails among {each['suspect_records']} records"
    if each["dead_letters"]:
        yield f"{each['dead_letters']} dead letters"
    if each["callback_s"] is not None:
        yield f"processing for {duration(each['callback_s'])}"


def batch_of(each: dict[str, Any]) -> str:
    """Return in words which records the batch of a partition has."""
    first, end = each["batch_offset"], each["batch_end"]
    if first is None:
        return "a batch"
    return f"record {first}" if end == first + 1 else f"the batch {first} to {end - 1}"


def state_word(word: str) -> Text:
    """Return a state in words, in its colour."""
    return Text(word.replace("_", " "), style=_STYLES.get(word, ""))
