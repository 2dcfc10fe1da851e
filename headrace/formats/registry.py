"""The schema registry: schemas by their ids and subjects, over the API that Confluent's has."""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headrace.core.clock import SYSTEM_CLOCK, Clock
from headrace.core.errors import RetryableError
from headrace.formats.answers import ask
from headrace.formats.errors import (
    RegistryError,
    SchemaRefusedError,
    UnknownSchemaError,
    UnknownYetError,
)
from headrace.formats.tokens import (
    ClientCredentials,
    FileToken,
    FixedToken,
    IssuedToken,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import httpx

    from headrace.config.models.registry import RegistryConfig, RegistryOauth
    from headrace.formats.tokens import Tokens

#: Seconds after which an id that is not known is asked for again. Only then is it the record's
#: fault: what a producer has just registered may not be with each server of a registry yet.
ASK_AGAIN = 30.0

#: How many schemas may refer to each other in a chain.
_MOST_REFERENCES = 64

#: How each :class:`RegistryError` begins, by which it is known in what another process said.
WAITS = "batches wait for the schema registry"

#: Confluent's codes for a subject, a version and a schema that is not there. A plain 404 is one of
#: a wrong address.
_NO_VERSION, _NO_ID, _NO_SCHEMA = (40401, 40402), (40403,), (40401, 40403)

#: Answers to a schema that is no heir of those before it, or none at all.
_REFUSALS = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """The servers of a registry, of which one is asked, and the way to log in."""

    urls: tuple[str, ...]
    timeout: float = 10.0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    oauth: ClientCredentials | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: str | None = field(default=None, repr=False)


def settings_of(chosen: RegistryConfig) -> RegistrySettings:
    """Return what the configuration says, with the secrets in plain text: for the client only."""
    tls = chosen.tls
    secrets = (chosen.password, chosen.token, None if tls is None else tls.key_password)
    password, token, key_password = (
        None if each is None else each.get_secret_value() for each in secrets
    )
    oauth = chosen.oauth
    return RegistrySettings(
        chosen.url,
        chosen.timeout,
        chosen.username,
        password,
        token,
        None if oauth is None else oauth.token_file,
        None if oauth is None else _credentials(oauth, chosen.timeout),
        tuple(chosen.header_texts().items()),
        None if tls is None else tls.ca_file,
        None if tls is None else tls.certificate_file,
        None if tls is None else tls.key_file,
        key_password,
    )


def _credentials(chosen: RegistryOauth, timeout: float) -> ClientCredentials | None:
    if chosen.token_url is None:
        return None
    assert chosen.client_id is not None, "the section demands it with token_url"
    assert chosen.client_secret is not None, "the section demands it with token_url"
    secret = chosen.client_secret.get_secret_value()
    return ClientCredentials(
        chosen.token_url, chosen.client_id, secret, chosen.scope, chosen.ca_file, timeout
    )


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema, and the texts of those that it names: each after what it names itself.

    ``number`` is its id, 0 where it was asked for by a GUID; ``kind`` is AVRO, PROTOBUF or JSON.
    ``names`` has the name of each of ``references``, as the schemas that refer to it write it.
    """

    number: int
    kind: str
    text: str
    references: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NewSchema:
    """A schema that is to be registered, or to be found as it is.

    ``references`` are those that it names: the name in it, the subject and the version of each.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as the registry takes it."""
        made: dict[str, Any] = {"schema": self.text}
        if self.kind != "AVRO":
            made["schemaType"] = self.kind
        if self.references:
            made["references"] = [
                {"name": name, "subject": subject, "version": version}
                for name, subject, version in self.references
            ]
        return made


def _tokens(settings: RegistrySettings, clock: Clock) -> Tokens | None:
    """Return the tokens that questions have, None where they have none."""
    if settings.token is not None:
        return FixedToken(settings.token)
    if settings.token_file is not None:
        return FileToken(settings.token_file)
    return None if settings.oauth is None else IssuedToken(settings.oauth, clock)


class SchemaRegistry:
    """A client of a registry. Any thread; blocks while it asks.

    A known id is not asked for again, because it always has the same schema. Questions are rare,
    and each has a connection of its own. ``form`` is the form in which schemas are asked for:
    ``serialized`` ones of Protobuf need no compiler.
    """

    def __init__(
        self, settings: RegistrySettings, clock: Clock = SYSTEM_CLOCK, form: str | None = None
    ) -> None:
        self._settings = settings
        self._query = "" if form is None else f"?format={form}"
        self._clock = clock
        self._tokens = _tokens(settings, clock)
        self._known: dict[int | str, RegisteredSchema] = {}
        #: When ids were first and last said to be unknown.
        self._unknown: dict[int | str, tuple[float, float]] = {}
        #: When the registry last gave no answer, and the error.
        self._failed = (float("-inf"), "")
        self._lock = threading.Lock()

    def schema(self, number: int | str) -> RegisteredSchema:
        """Return the schema of this id, or of this GUID.

        Raises:
            RegistryError: the registry does not answer, or said for the first time that there is
                none.
            UnknownSchemaError: it said so twice, half a minute apart.
        """
        found = self._known.get(number)
        if found is not None:
            return found
        began = self._clock.monotonic()
        with self._lock:
            found = self._known.get(number)
            if found is None:
                failed_at, failure = self._failed
                if failed_at > began:
                    raise RegistryError(failure)  # it was asked while this call waited for the lock
                try:
                    found = self._asked(number)
                except UnknownYetError:
                    raise
                except RegistryError as error:
                    self._failed = (self._clock.monotonic(), str(error))
                    raise
        return found

    def schema_now(self, number: int) -> RegisteredSchema:
        """Return the schema of this id; one answer that there is none is enough.

        Raises:
            RegistryError: the registry does not answer.
            UnknownSchemaError: there is none.
        """
        with self._lock:
            said = self._get(f"/schemas/ids/{number}", _NO_ID)
            if said is None:
                raise UnknownSchemaError(f"the registry {self._named} has no schema id {number}")
            return self._schema_of(said, number)

    def version(self, subject: str, version: str) -> RegisteredSchema:
        """Return the schema of a subject; ``version`` is a number or latest.

        Raises:
            RegistryError: the registry does not answer.
            UnknownSchemaError: there is none.
        """
        with self._lock:
            said = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}", _NO_VERSION)
            if said is None:
                raise UnknownSchemaError(
                    f"the registry {self._named} has no version {version} of subject {subject}"
                )
            return self._schema_of(said, self._number_of(said, "id"))

    def register(self, subject: str, schema: NewSchema, *, normalize: bool = False) -> int:
        """Return the id of a schema, registered as the subject's next version if it is a new one.

        Raises:
            RegistryError: the registry does not answer.
            SchemaRefusedError: it refuses the schema; the text has its reason.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        said = self._posted(path, schema, normalize, ())
        assert said is not None, "there is no code for it"
        return self._number_of(said, "id")

    def look_up(
        self, subject: str, schema: NewSchema, *, normalize: bool = False
    ) -> tuple[int, int]:
        """Return the id and the version that a schema has in a subject.

        Raises:
            RegistryError: the registry does not answer.
            SchemaRefusedError: it refuses the schema; the text has its reason.
            UnknownSchemaError: there is no such subject, or it does not have the schema.
        """
        said = self._posted(f"/subjects/{quote(subject, safe='')}", schema, normalize, _NO_SCHEMA)
        if said is None:
            raise UnknownSchemaError(
                f"the registry {self._named} does not have the schema in subject {subject}"
            )
        return self._number_of(said, "id"), self._number_of(said, "version")

    def _posted(
        self, path: str, schema: NewSchema, normalize: bool, missing: tuple[int, ...]
    ) -> Mapping[str, Any] | None:
        query = "?normalize=true" if normalize else ""
        with self._lock:
            return self._said(path, query, missing, schema.document())

    def _number_of(self, said: Mapping[str, Any], field: str) -> int:
        number = said.get(field)
        if type(number) is not int:
            raise self._shapeless(f"no {field} of a schema")
        return number

    def _asked(self, number: int | str) -> RegisteredSchema:
        now, kind = self._clock.monotonic(), "id" if isinstance(number, int) else "guid"
        first, last = self._unknown.get(number, (now, None))
        if last is None or now - last >= ASK_AGAIN:
            said = self._get(f"/schemas/{kind}s/{number}", _NO_ID)
            if said is not None:
                found = self._schema_of(said, number if isinstance(number, int) else 0)
                self._known[number] = found
                self._unknown.pop(number, None)
                return found
            last = now
            self._unknown[number] = (first, last)
        if last - first < ASK_AGAIN:
            raise UnknownYetError(
                f"{WAITS} to know schema {kind} {number}, which {self._named} does not; it is "
                f"asked again {ASK_AGAIN:g} s after the first time"
            )
        raise UnknownSchemaError(f"it is not known to the registry {self._named}")

    def _schema_of(self, said: Mapping[str, Any], number: int) -> RegisteredSchema:
        texts: dict[tuple[str, int], tuple[str, str]] = {}
        self._add_references(said, texts, 0)
        kind = said.get("schemaType") or "AVRO"
        if not isinstance(kind, str):
            raise self._shapeless(f"schemaType {kind!r}")
        names, references = (tuple(each[at] for each in texts.values()) for at in (0, 1))
        return RegisteredSchema(number, kind, self._text_of(said), references, names)

    def _text_of(self, said: Mapping[str, Any]) -> str:
        text = said.get("schema")
        if not isinstance(text, str):
            raise self._shapeless("no text of a schema")
        return text

    def _add_references(
        self, said: Mapping[str, Any], texts: dict[tuple[str, int], tuple[str, str]], depth: int
    ) -> None:
        if depth > _MOST_REFERENCES:
            raise RegistryError(f"{WAITS}: schemas of {self._named} refer to each other in circles")
        given = said.get("references") or ()
        if not isinstance(given, list | tuple):
            raise self._shapeless("references that are no list")
        for each in given:
            subject, version = self._reference(each)
            if (subject, version) in texts:
                continue
            inner = self._get(
                f"/subjects/{quote(subject, safe='')}/versions/{version}", _NO_VERSION
            )
            if inner is None:
                raise RegistryError(
                    f"{WAITS} to have version {version} of subject {subject}, which a schema of "
                    f"{self._named} refers to"
                )
            self._add_references(inner, texts, depth + 1)
            texts[subject, version] = str(each.get("name")), self._text_of(inner)

    def _reference(self, given: Any) -> tuple[str, int]:
        if isinstance(given, dict):
            subject, version = given.get("subject"), given.get("version")
            if isinstance(subject, str) and type(version) is int:
                return subject, version
        raise self._shapeless("a reference without a subject and a version")

    def _shapeless(self, has: str) -> RegistryError:
        """Return the error of an answer that is not as the API has it: no record's fault."""
        return RegistryError(
            f"{WAITS} to give a schema: {self._named} answered with {has}; see what answers there"
        )

    @property
    def _named(self) -> str:
        return ", ".join(self._settings.urls)

    def _get(self, path: str, missing: tuple[int, ...]) -> Mapping[str, Any] | None:
        """Return what the first server that answers says, None for a code of ``missing``."""
        return self._said(path, self._query, missing, None)

    def _said(
        self,
        path: str,
        query: str,
        missing: tuple[int, ...],
        document: Mapping[str, Any] | None,
    ) -> Mapping[str, Any] | None:
        """Return the answer as :meth:`_get` does, to a document where there is one.

        Raises:
            SchemaRefusedError: the registry refuses the schema that the document has.
        """
        import httpx  # noqa: PLC0415 - takes a while, and few channels have a registry

        errors = []
        with self._client() as client:
            for url in self._settings.urls:
                try:
                    answer = ask(
                        client,
                        url.rstrip("/") + path + query,
                        self._settings.timeout,
                        document=document,
                    )
                except httpx.LocalProtocolError as error:
                    # its text has the header, and so the login
                    errors.append(f"{url} was not asked: {type(error).__name__}; a header is none")
                    continue
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    errors.append(f"{url}: {str(error) or type(error).__name__}")
                    continue
                said = answer.said
                if answer.is_success and said is not None:
                    return said
                code = None if said is None else said.get("error_code")
                if answer.status == HTTPStatus.NOT_FOUND and code in missing:
                    return None
                if document is not None and answer.status in _REFUSALS:
                    reason = answer if said is None else said.get("message", answer)
                    raise SchemaRefusedError(f"the registry {url} refuses the schema: {reason}")
                if answer.status == HTTPStatus.UNAUTHORIZED and self._tokens is not None:
                    self._tokens.drop()
                errors.append(f"{url} answered {answer}")
        raise RegistryError(
            f"{WAITS} to say what {path} is: {'; '.join(errors)}; it is asked again"
        )

    def _client(self) -> httpx.Client:
        import httpx  # noqa: PLC0415 - few channels have a registry

        settings = self._settings
        headers = dict(settings.headers)
        headers["Accept"] = "application/vnd.schemaregistry.v1+json, application/json"
        if self._tokens is not None:
            try:
                headers["Authorization"] = f"Bearer {self._tokens.token()}"
            except RetryableError as error:
                raise RegistryError(f"{WAITS}, for which there is no token now: {error}") from error
        login = None
        if settings.username is not None:
            login = httpx.BasicAuth(settings.username, settings.password or "")
        return httpx.Client(
            auth=login, headers=headers, timeout=settings.timeout, verify=self._tls()
        )

    def _tls(self) -> ssl.SSLContext:
        settings = self._settings
        try:
            context = ssl.create_default_context(cafile=settings.ca_file)
            if settings.certificate_file is not None:
                context.load_cert_chain(
                    settings.certificate_file, settings.key_file, settings.key_password or ""
                )
        except (OSError, ssl.SSLError) as error:
            raise RegistryError(
                f"{WAITS}: the files of registry.tls cannot be used: {error}; correct them"
            ) from error
        return context
