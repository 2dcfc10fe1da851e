"""The configuration as it is in effect, for people: defaults filled in, secrets masked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from headrace.config.errors import MASK
from headrace.config.models.base import Section
from headrace.config.types.secrets import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping


def show(config: Section) -> str:
    """Return ``config`` as YAML that loads again, once the masked secrets are filled in."""
    return yaml.safe_dump(escaped(masked(config)), sort_keys=False, allow_unicode=True)


def document(config: Section) -> Mapping[str, Any]:
    """Return ``config`` as plain values for JSON, with secrets masked."""
    values: Mapping[str, Any] = masked(config)
    return values


def masked(value: Any) -> Any:
    """Return a value of a configuration as JSON has it, with secrets masked."""
    if isinstance(value, Section):
        return masked(value.model_dump(by_alias=True))
    if is_secret(value):
        return MASK
    if isinstance(value, dict):
        return {key: masked(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [masked(item) for item in value]
    return str(value) if isinstance(value, (str, Path)) else value


def escaped(value: Any) -> Any:
    """Return a masked value as YAML has it: without what would be taken for references."""
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return value.replace("${", "$${") if isinstance(value, str) else value
