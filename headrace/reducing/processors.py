"""From the command line and a configuration to the processor whose reducer is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from headrace import config
from headrace.offsets.commands import channel_name
from headrace.offsets.errors import RequestError

if TYPE_CHECKING:
    from typing import TypeAlias

    from headrace.reducing.commands import Wanted

    Reducing: TypeAlias = config.SparkProcessorConfig | config.ArrowProcessorConfig


def processor_of(wanted: Wanted, settings: config.Config | None) -> Reducing:
    """Return the processor that is wanted: the channel's, unless the type is given.

    Raises:
        RequestError: the command line does not say enough, or too much, or the channel has no
            reducer.
    """
    if settings is None or wanted.kind is not None:
        return _built(wanted, {})
    return _built(wanted, _given(_of_channel(settings, wanted.channel)))


def _of_channel(settings: config.Config, channel: str | None) -> Reducing:
    name = channel_name(settings, channel)
    found = settings.channels[name].processor
    if not isinstance(found, config.SparkProcessorConfig | config.ArrowProcessorConfig):
        raise RequestError(
            [f"channel {name} is of type {found.type}, which has no reducer; choose another one"]
        )
    return found


def _given(processor: Reducing) -> dict[str, Any]:
    """Return what the file says, but for ``reload``: nothing is followed here."""
    given = processor.model_dump(by_alias=True, exclude_unset=True, exclude={"reload"})
    return given | {"type": processor.type}


def _built(wanted: Wanted, given: dict[str, Any]) -> Reducing:
    """Return the processor with what the command line says in place of what is given."""
    kind = wanted.kind or given.get("type", "spark")
    if kind not in {"spark", "arrow"}:
        raise RequestError([f"--type {kind} is not spark or arrow"])
    place = "arrow" if given.get("arrow") and not wanted.sql else "reducer"
    code = {place: wanted.reducer, "sql": wanted.sql}
    if wanted.reducer or wanted.sql:
        gone = {"reducer", "sql", "arrow"} | ({"result"} if wanted.sql else set())
        given = {key: value for key, value in given.items() if key not in gone}
    values = {**given, **{key: value for key, value in code.items() if value}, "type": kind}
    if wanted.schema is not None:
        values |= {"decode": "json", "schema": wanted.schema}
    return _validated(kind, values)


def _validated(kind: str, values: dict[str, Any]) -> Reducing:
    model = config.SparkProcessorConfig if kind == "spark" else config.ArrowProcessorConfig
    if "sql" in values and kind == "arrow":
        raise RequestError(["--sql goes with --type spark"])
    if not any(values.get(name) for name in ("reducer", "sql", "arrow")):
        raise RequestError(["there is nothing to try; give --reducer, --sql or --config"])
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise RequestError([each["msg"] for each in error.errors()]) from error
