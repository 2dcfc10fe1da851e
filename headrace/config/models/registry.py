"""The ``registry`` section, the reader's schema of a channel, and the writer's of a sink."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from headrace.config.errors import FieldConflict
from headrace.config.models.base import Reconnects, Restarts, Section, TlsFiles
from headrace.config.models.oauth import OauthTokens
from headrace.config.types.scalars import (
    Count,
    FieldType,
    Flag,
    FreeText,
    LocalPath,
    OneOrMore,
    Text,
)
from headrace.config.types.secrets import Properties, PropertyValue, SecretValue, reveal_all
from headrace.config.types.units import Duration

if TYPE_CHECKING:
    from collections.abc import Iterator

RegistryUrl = Annotated[
    str,
    Text(
        "an address such as https://registry.example:8081, without a name and a password",
        r"https?://[^\s/@?#]+(/[^\s?#]*)?",
    ),
]


class RegistryTls(TlsFiles):
    """TLS to the registry."""


class RegistryOauth(OauthTokens):
    """Tokens of OAuth 2.0 for the registry, sent as bearer tokens.

    Either they are fetched from ``token_url`` with client credentials, or ``token_file`` has one.
    """


#: As RFC 9110 has the names of headers.
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_HEADERS = {"authorization", "accept", "host", "content-length", "transfer-encoding"}


def _header_fault(name: str) -> str | None:
    if name.lower() in _OWN_HEADERS:
        return "is Headrace's own; leave it out"
    return None if _HEADER.fullmatch(name) else "is no name of a header of HTTP"


class RegistryConfig(Section):
    """The schema registry, by the API that Confluent's has: Karapace and Apicurio have it too."""

    url: Reconnects[Annotated[tuple[RegistryUrl, ...], OneOrMore]]
    """The address of the registry. Of several the first that answers is taken."""

    tls: Reconnects[RegistryTls | None] = None
    """The files for https; null: the system's certificates."""

    username: Reconnects[FreeText | None] = None
    """The user's name, or the name of an API key."""

    password: Reconnects[SecretValue | None] = None
    """The user's password, or the secret of an API key."""

    token: Reconnects[SecretValue | None] = None
    """A bearer token, in place of a user's name."""

    oauth: Reconnects[RegistryOauth | None] = None
    """Tokens of OAuth 2.0, in place of a user's name; null: none."""

    headers: Reconnects[Annotated[Mapping[str, PropertyValue], Properties(_header_fault)]] = Field(
        default={}
    )
    """Headers that each question has, such as target-sr-cluster of Confluent Cloud."""

    timeout: Reconnects[Annotated[float, Duration(0.1, 60)]] = 10.0
    """Longest time that an answer may take."""

    def header_texts(self) -> dict[str, str]:
        """Return ``headers`` as text, secrets in plain text: for the client only."""
        return {name: str(value) for name, value in reveal_all(self.headers).items()}

    def conflicts(self) -> Iterator[FieldConflict]:
        if not self.url:
            yield FieldConflict(("url",), "has no address; give one")
        if self.username is not None and self.password is None:
            yield FieldConflict(("password",), "is missing, which username needs")
        if self.password is not None and self.username is None:
            yield FieldConflict(("username",), "is missing, which password is of")
        logins = [n for n in ("username", "token", "oauth") if getattr(self, n) is not None]
        for other in logins[1:]:
            yield FieldConflict(
                (other,), f"is a login, and so is {logins[0]}; leave one of them out"
            )
        if self.tls is not None and not all(each.startswith("https:") for each in self.url):
            yield FieldConflict(("tls",), "is for https, and url is http; correct one of them")


class SchemaVersion(FieldType):
    """The version of a subject: a number, or latest."""

    __slots__ = ()

    description = "latest, or the number of a version"

    def read(self, value: Any) -> int | str:
        if value == "latest":
            return "latest"
        text = str(value) if type(value) is int or isinstance(value, str) else ""
        if not text.isdecimal() or int(text) == 0:
            raise self.not_accepted()
        return int(text)

    def json_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"const": "latest"}, {"type": "integer", "minimum": 1}]}


class ReaderSchemaConfig(Section):
    """The schema that values are read by, whichever one they were written by."""

    subject: Restarts[FreeText | None] = None
    """The subject in the registry, such as orders-value."""

    version: Restarts[Annotated[int | str, SchemaVersion()]] = "latest"
    """The version of subject. latest is looked up at each start of the channel."""

    id: Restarts[Count | None] = None
    """The id of the schema in the registry, in place of a subject."""

    file: Restarts[LocalPath | None] = None
    """A file in place of the registry's schema: one of Avro in JSON, or of Protobuf a set of
    descriptors, as protoc --include_imports --descriptor_set_out writes it."""

    message: Restarts[FreeText | None] = None
    """The full name of the message, with decode: protobuf; null: the schema's first."""

    @property
    def named(self) -> str:
        """Return how errors name the schema."""
        if self.file is not None:
            return str(self.file)
        return f"id {self.id}" if self.id is not None else f"{self.subject}, version {self.version}"

    def conflicts(self) -> Iterator[FieldConflict]:
        given = [name for name in ("subject", "id", "file") if getattr(self, name) is not None]
        if not given:
            yield FieldConflict(("subject",), "is missing; give subject, id or file")
        for other in given[1:]:
            yield FieldConflict((other,), f"is given beside {given[0]}; give one of them")
        if "version" in self.model_fields_set and self.subject is None:
            yield FieldConflict(("version",), "is of a subject; give subject, or leave it out")


RecordName = Annotated[
    str,
    Text(
        "a name of letters, digits and _, in a namespace such as shop.Order",
        r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*",
    ),
]


class WriterSchemaConfig(Section):
    """The schema that values are written by.

    Without ``file``, ``text``, ``subject`` or ``id`` it is made of the columns of a result.
    """

    file: Restarts[LocalPath | None] = None
    """A file: a schema of Avro or of JSON, or of Protobuf a set of descriptors, as protoc
    --include_imports --descriptor_set_out writes it."""

    text: Restarts[FreeText | None] = None
    """The schema itself, in place of a file; of Avro or of JSON."""

    subject: Restarts[FreeText | None] = None
    """A subject that the registry has, whose schema is taken in place of a file."""

    version: Restarts[Annotated[int | str, SchemaVersion()]] = "latest"
    """The version of subject. latest is looked up at each start of the channel."""

    id: Restarts[Count | None] = None
    """The id of the schema in the registry, in place of a subject."""

    message: Restarts[FreeText | None] = None
    """The full name of the message, with encode: protobuf; null: the schema's first."""

    name: Restarts[RecordName | None] = None
    """The full name of the record or the message that is made of columns; null: the topic's."""

    subject_name: Restarts[Literal["topic", "record", "topic_record"]] = "topic"
    """The subject that a schema is registered under: the topic's name and -value (topic), the full
    name of the record or message (record), or both with - between (topic_record)."""

    register_schema: Restarts[Flag] = Field(default=True, alias="register")
    """Register a schema that the registry does not have; false: it must exist."""

    normalize: Restarts[Flag] = False
    """Ask the registry to compare schemas in its own form."""

    @property
    def named(self) -> str:
        """Return how errors name the schema."""
        if self.file is not None:
            return str(self.file)
        if self.id is not None:
            return f"id {self.id}"
        if self.subject is not None:
            return f"{self.subject}, version {self.version}"
        return "of text" if self.text is not None else "of the columns"

    @property
    def is_registered(self) -> bool:
        """Return whether the registry has the schema already."""
        return self.subject is not None or self.id is not None

    @property
    def is_derived(self) -> bool:
        """Return whether the schema is made of columns."""
        return self.file is None and self.text is None and not self.is_registered

    def conflicts(self) -> Iterator[FieldConflict]:
        sources = ("file", "text", "subject", "id")
        given = [name for name in sources if getattr(self, name) is not None]
        for other in given[1:]:
            yield FieldConflict((other,), f"is given beside {given[0]}; give one of them")
        if "version" in self.model_fields_set and self.subject is None:
            yield FieldConflict(("version",), "is of a subject; give subject, or leave it out")
        for field, key in (
            ("subject_name", "subject_name"),
            ("register_schema", "register"),
            ("normalize", "normalize"),
        ):
            if self.is_registered and field in self.model_fields_set:
                yield FieldConflict(
                    (key,),
                    f"is for a schema that the registry lacks, and {given[0]} is of one "
                    "that it has; leave one of them out",
                )
        if self.name is not None and not self.is_derived:
            yield FieldConflict(
                ("name",),
                f"is of a schema that is made of columns, and {given[0]} has its own; leave it out",
            )
        if self.message is not None and self.is_derived:
            yield FieldConflict(("message",), "is of a schema that there is; give file, or name")
