"""The options that commands of several applications have, and how their values are read."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any

import typer


class EngineName(Enum):
    """The engine that runs an application's reducer."""

    SPARK = "spark"
    """In Spark's workers."""

    ARROW = "arrow"
    """In the process itself, which takes no Java."""


EngineOption = Annotated[
    EngineName,
    typer.Option(metavar="spark|arrow", help="In Spark's workers, or in the process itself."),
]
PropertiesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-X",
        metavar="NAME=VALUE",
        help="A property of librdkafka, for instance for TLS; may be repeated.",
    ),
]
PartitionsOption = Annotated[
    int, typer.Option(min=1, help="The number of partitions of new topics.")
]
CreateOption = Annotated[bool, typer.Option("--create", help="Create the topics that are missing.")]
PrintConfigOption = Annotated[
    bool, typer.Option("--print-config", help="Print the configuration without running it.")
]


def named(properties: list[str] | None, option: str = "--property") -> dict[str, str]:
    """Return an option's values by name; raises typer.BadParameter where one is not NAME=VALUE."""
    found = {}
    for each in properties or []:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE", param_hint=option)
        found[name] = value
    return found


def parsed(text: str | None, option: str) -> Any:
    """Return what JSON says, None for None; raises typer.BadParameter where it is none."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no JSON: {error}", param_hint=option) from None
