"""Where Spark's Kafka connector comes from."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from headrace.config.kinds.paths import absolute
from headrace.config.kinds.text import Text

#: Stands for the coordinate that fits the pyspark that is installed.
MAVEN = "maven"

_COORDINATE = r"[^/:\s]+:[^/:\s]+:[^/:\s]+"


def is_coordinate(text: str) -> bool:
    """Whether the text is what Maven calls an artifact, and not a folder."""
    return re.fullmatch(_COORDINATE, text) is not None


def _resolve(text: str, info: ValidationInfo) -> str:
    return text if text == MAVEN or is_coordinate(text) else absolute(text, info)


Connector = Annotated[
    str,
    Text("maven, a coordinate such as group:artifact:version, or a folder of jars"),
    AfterValidator(_resolve),
]
