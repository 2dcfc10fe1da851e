"""The user's code that a channel by key names: its reducer with its phases, and its decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from headrace.core.errors import ConfigError, ImportPathError
from headrace.core.imports import load_callable, make
from headrace.extensions.keyed.api import Phases
from headrace.processors.micro_batch_processor import decoder_of, reading_decoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.config.models.registry import RegistryConfig
    from headrace.core.decoders import CustomDecoder
    from headrace.extensions.keyed.api import KeyedReducer
    from headrace.extensions.keyed.section import KeyedProcessorConfig, RekeyProcessorConfig

#: What a keyed reducer is called with.
_ARGUMENTS = ("key", "state", "facts", "now")


def load_reducer(
    chosen: KeyedProcessorConfig, outputs: Sequence[str]
) -> KeyedReducer[Any, Any, Any]:
    """Return the reducer; where it says in ``outputs`` what it writes to, the channel has that.

    Raises:
        ImportPathError: it cannot be imported or made, or writes to an output that does not exist.
    """
    found = _load(chosen)
    missing = sorted(set(getattr(found, "outputs", ())) - set(outputs))
    if missing:
        there = f"the outputs are {', '.join(outputs)}" if outputs else "the channel has no sink"
        raise ImportPathError(
            f"{chosen.code!r} writes to {missing[0]!r}, and {there}; give sink an output of that "
            "name, of type kafka"
        )
    return found


def load_decoder(
    chosen: KeyedProcessorConfig | RekeyProcessorConfig, registry: RegistryConfig | None
) -> CustomDecoder | None:
    """Return the decoder that is configured, None where values are read as JSON, text or bytes.

    Of Avro and Protobuf the reader's schema is read now, which may take the ``registry``.

    Raises:
        ConfigError: the reader's schema cannot be used.
        StartError: the registry does not have it, or does not answer.
        ImportPathError: it cannot be imported or made.
    """
    if chosen.value == "json_schema":
        from headrace.formats.json_schema import values_decoder_of  # noqa: PLC0415 - few have it

        if registry is None:
            raise ConfigError(["value: json_schema needs the section registry"])
        decoder: CustomDecoder | None = values_decoder_of(registry)
    elif chosen.framed is not None:
        decoder = reading_decoder("value", chosen.value, chosen.reader_schema, registry)
    else:
        decoder = decoder_of(chosen.decoder)
    if decoder is not None:
        decoder.load()
    return decoder


def phases_of(chosen: KeyedProcessorConfig, reducer: object) -> Phases | None:
    """Return how a reducer has its states counted, None where it does not.

    Raises:
        ImportPathError: its attribute ``phases`` is something else.
    """
    found = getattr(reducer, "phases", None)
    if found is None or isinstance(found, Phases):
        return found
    kind = type(found).__name__
    raise ImportPathError(
        f"{chosen.code!r} has a {kind} in its attribute phases; it has to be headrace.keyed.Phases"
    )


def _load(chosen: KeyedProcessorConfig) -> KeyedReducer[Any, Any, Any]:
    """Return what the configuration names, or what its factory makes."""
    if chosen.reducer is not None:
        return cast("KeyedReducer[Any, Any, Any]", load_callable(chosen.reducer, *_ARGUMENTS))
    assert chosen.factory is not None, "the configuration demands one of them"
    made = make(chosen.factory, chosen.keyword_arguments())
    if not callable(made):
        kind = type(made).__name__
        raise ImportPathError(
            f"{chosen.factory!r} returned a {kind}; it must return a function of "
            f"({', '.join(_ARGUMENTS)})"
        )
    return cast("KeyedReducer[Any, Any, Any]", made)
