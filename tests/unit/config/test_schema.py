from __future__ import annotations

import json

import pytest

from headrace.config.problems import fields
from headrace.config.reference import chapters, meanings, schema
from headrace.config.types.scalars import REFERENCE_SCHEMA

SCHEMA = schema()
DEFINITIONS = SCHEMA["$defs"]


def test_the_schema_is_json() -> None:
    """The schema holds nothing but JSON's own values, and names its dialect."""
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_field_is_in_the_schema() -> None:
    """Each field of each section has its description, and whether it is hot."""
    for chapter in chapters():
        own = SCHEMA if not chapter.path else DEFINITIONS[chapter.section.__name__]
        assert list(own["properties"]) == [name for name, _ in fields(chapter.section)]
        assert own["additionalProperties"] is False
        known = meanings(chapter.section)
        for name, _ in fields(chapter.section):
            described = own["properties"][name]
            assert described["description"] == known[name]
            assert isinstance(described["hot"], bool)


def test_defaults_are_shown_as_they_are_written() -> None:
    """Defaults have the units that a file needs."""
    batch, channel = DEFINITIONS["BatchConfig"], DEFINITIONS["ChannelConfig"]
    assert batch["properties"]["linger"]["default"] == "100ms"
    assert batch["properties"]["max_bytes"]["default"] == "16MiB"
    assert batch["properties"]["max_records"]["default"] == 10000
    assert channel["properties"]["batch"]["default"]["linger"] == "100ms"
    assert SCHEMA["properties"]["zookeeper"]["default"]["session_timeout"] == "10s"


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("BatchConfig", "max_records"),
        ("BatchConfig", "linger"),
        ("ChannelConfig", "enabled"),
        ("ChannelConfig", "initial_offset"),
        ("LoggingConfig", "level"),
    ],
)
def test_references_fit_typed_fields(section: str, field: str) -> None:
    """A reference is valid in place of a number, a truth value, a duration or a word."""
    assert REFERENCE_SCHEMA in DEFINITIONS[section]["properties"][field]["anyOf"]


def test_the_type_is_required_where_it_chooses() -> None:
    """Members of a union need their type, except the coordinator that is the default."""
    assert "type" in DEFINITIONS["DeltaSinkConfig"]["required"]
    assert "type" in DEFINITIONS["StaticCoordinatorConfig"]["required"]
    assert "required" not in DEFINITIONS["DynamicCoordinatorConfig"]


def test_short_forms_are_in_the_schema() -> None:
    """Coordinators, sinks and lists of servers may be text."""
    channel = DEFINITIONS["ChannelConfig"]["properties"]
    assert {"type": "string"} in channel["coordinator"]["anyOf"]
    assert {"type": "string"} in channel["sink"]["anyOf"]
    servers = DEFINITIONS["KafkaConfig"]["properties"]["bootstrap_servers"]
    assert {"type": "string"} in servers["anyOf"]


def test_passwords_are_marked() -> None:
    """Editors are told which fields are secrets, and get no default for them."""
    password = DEFINITIONS["KafkaSasl"]["properties"]["password"]
    assert {"type": "string", "writeOnly": True} in password["anyOf"]
    assert "default" not in password
