"""The schema registry: schemas by their ids and subjects, over the API that Confluent's has."""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headrace.core.clock import SYSTEM_CLOCK, Clock
from headrace.formats.errors import RegistryError, UnknownSchemaError, UnknownYetError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import httpx

    from headrace.config.models.registry import RegistryConfig

#: Seconds after which an id that is not known is asked for again. Only then is it the record's
#: fault: what a producer has just registered may not be with each server of a registry yet.
ASK_AGAIN = 30.0

#: How many schemas may refer to each other in a chain.
_MOST_REFERENCES = 64

#: How each :class:`RegistryError` begins, by which it is known in what another process said.
WAITS = "batches wait for the schema registry"

#: Confluent's codes for a subject, a version and a schema that is not there. A plain 404 is one of
#: a wrong address.
_NO_VERSION, _NO_ID = (40401, 40402), (40403,)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """The servers of a registry, of which one is asked, and the way to log in."""

    urls: tuple[str, ...]
    timeout: float = 10.0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
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
    return RegistrySettings(
        chosen.url,
        chosen.timeout,
        chosen.username,
        password,
        token,
        None if tls is None else tls.ca_file,
        None if tls is None else tls.certificate_file,
        None if tls is None else tls.key_file,
        key_password,
    )


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema, and the texts of those that it names: each after what it names itself.

    ``number`` is its id; ``kind`` is AVRO, PROTOBUF or JSON.
    """

    number: int
    kind: str
    text: str
    references: tuple[str, ...] = ()


class SchemaRegistry:
    """A client of a registry. Any thread; blocks while it asks.

    A known id is not asked for again, because it always has the same schema. Questions are rare,
    and each has a connection of its own.
    """

    def __init__(self, settings: RegistrySettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._clock = clock
        self._known: dict[int, RegisteredSchema] = {}
        #: When ids were first and last said to be unknown.
        self._unknown: dict[int, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema of this id.

        Raises:
            RegistryError: the registry does not answer, or said for the first time that there is
                none.
            UnknownSchemaError: it said so twice, half a minute apart.
        """
        found = self._known.get(number)
        if found is not None:
            return found
        with self._lock:
            found = self._known.get(number)
            if found is None:
                found = self._asked(number)
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
            return self._schema_of(said, int(said.get("id", 0)))

    def _asked(self, number: int) -> RegisteredSchema:
        now = self._clock.monotonic()
        first, last = self._unknown.get(number, (now, None))
        if last is None or now - last >= ASK_AGAIN:
            said = self._get(f"/schemas/ids/{number}", _NO_ID)
            if said is not None:
                found = self._schema_of(said, number)
                self._known[number] = found
                self._unknown.pop(number, None)
                return found
            last = now
            self._unknown[number] = (first, last)
        if last - first < ASK_AGAIN:
            raise UnknownYetError(
                f"{WAITS} to know schema id {number}, which {self._named} does not; it is asked "
                f"again {ASK_AGAIN:g} s after the first time"
            )
        raise UnknownSchemaError(f"it is not known to the registry {self._named}")

    def _schema_of(self, said: Mapping[str, Any], number: int) -> RegisteredSchema:
        texts: dict[tuple[str, Any], str] = {}
        self._add_references(said, texts, 0)
        try:
            text, kind = str(said["schema"]), str(said.get("schemaType") or "AVRO")
        except KeyError:
            raise RegistryError(
                f"{WAITS} to give a schema: {self._named} answered a question for one without it"
            ) from None
        return RegisteredSchema(number, kind, text, tuple(texts.values()))

    def _add_references(
        self, said: Mapping[str, Any], texts: dict[tuple[str, Any], str], depth: int
    ) -> None:
        if depth > _MOST_REFERENCES:
            raise RegistryError(f"{WAITS}: schemas of {self._named} refer to each other in circles")
        for each in said.get("references") or ():
            subject, version = str(each["subject"]), each["version"]
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
            texts[subject, version] = str(inner["schema"])

    @property
    def _named(self) -> str:
        return ", ".join(self._settings.urls)

    def _get(self, path: str, missing: tuple[int, ...]) -> Mapping[str, Any] | None:
        """Return what the first server that answers says, None for a code of ``missing``."""
        import httpx  # noqa: PLC0415 - takes a while, and few channels have a registry

        errors = []
        with self._client() as client:
            for url in self._settings.urls:
                try:
                    answer = client.get(url.rstrip("/") + path)
                except httpx.LocalProtocolError as error:
                    # its text has the header, and so the login
                    errors.append(f"{url} was not asked: {type(error).__name__}; a header is none")
                    continue
                except httpx.HTTPError as error:
                    errors.append(f"{url}: {str(error) or type(error).__name__}")
                    continue
                said = _json(answer)
                if answer.is_success and isinstance(said, dict):
                    return said
                code = said.get("error_code") if isinstance(said, dict) else None
                if answer.status_code == httpx.codes.NOT_FOUND and code in missing:
                    return None
                errors.append(f"{url} answered {answer.status_code} {answer.reason_phrase}")
        raise RegistryError(
            f"{WAITS} to say what {path} is: {'; '.join(errors)}; it is asked again"
        )

    def _client(self) -> httpx.Client:
        import httpx  # noqa: PLC0415 - few channels have a registry

        settings = self._settings
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if settings.token is not None:
            headers["Authorization"] = f"Bearer {settings.token}"
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


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None
