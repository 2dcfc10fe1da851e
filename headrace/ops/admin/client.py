"""The API's client: which process is meant, where its API is, and asking it."""

from __future__ import annotations

import json
import os
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from headrace.config import load
from headrace.core.errors import (
    ConfigError,
    HeadraceError,
    NoRecordError,
    SeveralProcessesError,
    UnreachableError,
)
from headrace.core.files import read_regular
from headrace.core.processes import find_process, is_alive
from headrace.ops.admin.auth import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from headrace.config import Config
    from headrace.core.processes import ProcessRecord


#: Seconds in which an answer begins, besides those that the process was asked to wait.
TIMEOUT = 30.0


#: What the API and its requests name, and what the command line has in its place.
_SHELL_WORDS = {
    "for_s": "--for",
    "wait_s": "--wait",
    "until": "--until",
    "reason": "--reason",
    "logger": "--logger",
    "/api/v1/status": "headrace status",
}
_IN_SECONDS = ("for_s", "wait_s")
_API_WORDS = re.compile(r"\bfor_s\b|\bwait_s\b|/api/v1/status|^(?:until|reason|logger)\b")


class AnswerError(HeadraceError):
    """The process refused, or failed. ``problem`` is what it answered, empty where that is none."""

    def __init__(self, message: str, status: int, problem: dict[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem


class AdminClient:
    """One process's API. For one thread; a context manager. Every method blocks.

    Raises:
        ConfigError: a file that was named cannot be used.
    """

    def __init__(self, target: ApiTarget) -> None:
        self._target = target
        headers = {} if target.token is None else {"Authorization": f"Bearer {target.token}"}
        try:
            self._client = httpx.Client(
                base_url=target.url,
                headers=headers,
                timeout=TIMEOUT,
                verify=_context(target),
                # no proxy of the environment's may see the token
                trust_env=False,
            )
        except (OSError, ssl.SSLError, ValueError, httpx.InvalidURL) as error:
            raise ConfigError([f"{target.url} cannot be asked: {error}"]) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def get(self, path: str) -> Any:
        """Read something.

        Raises:
            UnreachableError: the process does not answer.
            AnswerError: the process refused.
        """
        return self._ask_api("GET", path)

    def post(self, path: str, body: dict[str, Any], wait: float = 0.0) -> Any:
        """Change something; the process may take ``wait`` seconds for it. Raises as ``get``."""
        sent = {key: value for key, value in body.items() if value is not None}
        return self._ask_api("POST", path, json=sent, timeout=TIMEOUT + wait)

    def lines(self, path: str) -> Iterator[Any]:
        """Yield the documents of an answer that has one on each line, as they come.

        Raises as ``get``, also where the answer breaks off.
        """
        try:
            with self._client.stream("GET", path) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self._refused(answer)
                yield from (json.loads(line) for line in answer.iter_lines())
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"{self._target.url} does not answer any more: {str(error) or type(error).__name__}"
                f"; see whether the process of {self._target.of} runs"
            ) from error

    def _ask_api(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"{self._target.url} does not answer: {str(error) or type(error).__name__}; see "
                f"whether the process of {self._target.of} runs"
            ) from error
        if answer.is_success:
            return _json(answer)
        raise self._refused(answer)

    def _refused(self, answer: httpx.Response) -> AnswerError:
        found = _json(answer)
        problem = found if isinstance(found, dict) and "next_step" in found else {}
        if answer.status_code == HTTPStatus.UNAUTHORIZED and self._target.no_token:
            text = f"this takes the process's token, and {self._target.no_token}"
        elif answer.status_code == HTTPStatus.UNAUTHORIZED:
            text = (
                f"the token is not that of the process at {self._target.url}; see whether another "
                "process answers there, or whether admin.token was changed since it started"
            )
        elif problem:
            text = _for_a_shell(problem)
        else:
            text = f"{self._target.url} answered {answer.status_code}; is it Headrace?"
        return AnswerError(text, answer.status_code, problem)


def _for_a_shell(problem: dict[str, Any]) -> str:
    """Return in words of the command line what the API says in those of its requests."""
    text, step = problem["message"], problem["next_step"]
    if problem["error"] == "invalid_request":
        place, _, sentence = text.partition(": ")
        field = place.removeprefix("body").removeprefix(".")
        sentence = sentence.removeprefix("Input ").removeprefix("String ")
        unit = " seconds" if field in _IN_SECONDS and sentence[-1:].isdigit() else ""
        text, step = f"{field} {sentence}{unit}".lstrip(), "see the command's --help"
    return _API_WORDS.sub(lambda match: _SHELL_WORDS[match[0]], f"{text}; {step}")


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _context(target: ApiTarget) -> ssl.SSLContext | bool:
    if not target.url.startswith("https:"):
        return False
    if target.own_certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(target.own_certificate)
    else:
        context = ssl.create_default_context(cafile=target.ca_file)
    if target.certificate_file is not None:
        context.load_cert_chain(target.certificate_file)
    return context


#: What stands in for options that are not given.
URL, TOKEN, TOKEN_FILE = "HEADRACE_URL", "HEADRACE_TOKEN", "HEADRACE_TOKEN_FILE"


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options that tell a command how to reach its process, or the variables that replace them."""

    config: Path | None = None
    url: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


@dataclass(frozen=True, slots=True)
class ApiTarget:
    """An API and the way in. ``of`` says whose it is, for messages.

    ``no_token`` says why there is none, where there is none. ``own_certificate`` is the one that
    the process was configured to show: nothing else is trusted then, and under any name.
    """

    url: str
    of: str
    token: str | None = field(repr=False)
    no_token: str
    ca_file: Path | None = None
    own_certificate: Path | None = None
    certificate_file: Path | None = None


def find(options: ClientOptions) -> ApiTarget:
    """Return where the API is. Blocks for as long as files take.

    What is in the configuration matters only where no process left a record of the file.

    Raises:
        ConfigError: neither an address nor a configuration was named, or the configuration is
            what leads to the process, and cannot be used.
        UnreachableError: the configuration's process does not run on this machine.
    """
    file = options.config
    if options.url is not None:
        return _addressed(options.url, options)
    if file is None:
        raise ConfigError(
            ["name the process: its configuration with -c FILE, or its address with --url URL"]
        )
    try:
        return _recorded(_running(file), options)
    except NoRecordError as error:
        config = _loaded(file, str(error))
    token, reason = _token(options, config)
    return ApiTarget(
        url=_address(config, file),
        of=f"{file}",
        token=token,
        no_token=reason,
        ca_file=options.ca_file,
        own_certificate=None if options.ca_file else _own_certificate(config),
        certificate_file=options.certificate_file,
    )


def process_url(file: Path) -> str:
    """Return where the process of a file serves its API. Raises and blocks as ``find`` does."""
    try:
        return _running(file).url
    except NoRecordError as error:
        return _address(_loaded(file, str(error)), file)


def _addressed(url: str, options: ClientOptions) -> ApiTarget:
    """Return what is at an address; what lets us in may be in a process's record, or in the file.

    A file that cannot be used is a reason for having no token, and reading may take none.
    """
    if options.config is not None:
        with suppress(UnreachableError):
            return _recorded(find_process(options.config, url=url.rstrip("/")), options)
    token, reason = _token(options, None)
    named = options.token_file is not None or token is not None
    if options.config is not None and not named:
        try:
            token, reason = _token(options, load(options.config))
        except ConfigError as error:
            reason = f"{options.config} cannot be used ({error.problems[0]}); {reason}"
    return ApiTarget(
        url=url,
        of=url,
        token=token,
        no_token=reason,
        ca_file=options.ca_file,
        certificate_file=options.certificate_file,
    )


def _running(file: Path) -> ProcessRecord:
    """Return the process that runs with a file; of several the one that the configuration names.

    Raises:
        NoRecordError: there is no record of the file.
        ConfigError: there are several, and the configuration cannot be used to tell them apart.
        UnreachableError: it does not run any more, or its record cannot be read.
    """
    try:
        return find_process(file)
    except NoRecordError:
        raise
    except SeveralProcessesError as several:
        try:
            return find_process(file, load(file).instance_id)
        except (ConfigError, UnreachableError):
            raise ConfigError([str(several)]) from None


def _loaded(file: Path, missing: str) -> Config:
    """Load a configuration; where it cannot be used, ``missing`` says why it had to be."""
    try:
        return load(file)
    except ConfigError as error:
        raise ConfigError([*error.problems, missing]) from None


def _recorded(record: ProcessRecord, options: ClientOptions) -> ApiTarget:
    token, reason = _token(options, None, record.token)
    own = record.certificate_file
    return ApiTarget(
        url=record.url,
        of=f"{options.config}",
        token=token,
        no_token=reason,
        ca_file=options.ca_file,
        own_certificate=None if options.ca_file or own is None else Path(own),
        certificate_file=options.certificate_file,
    )


def _address(config: Config, file: Path) -> str:
    if not config.admin.enabled:
        raise ConfigError([f"{file}: admin.enabled is false, so that there is no API to ask"])
    folder = Folder.of(config)
    found = folder.read_address()
    if found is None:
        raise UnreachableError(
            f"no process with the instance_id {config.instance_id} runs here "
            f"({folder.address_file} is missing or cannot be read); start it with "
            f"headrace run -c {file}, or name it by --url if it runs elsewhere"
        )
    if not is_alive(found.pid):
        raise UnreachableError(
            f"the process of {file}, {found.pid}, does not run any more; start it with "
            f"headrace run -c {file}"
        )
    return found.url


def _token(
    options: ClientOptions, config: Config | None, run_token: str | None = None
) -> tuple[str | None, str]:
    """Return the token, or None and why there is none."""
    if options.token_file is not None:
        return _from_file(options.token_file)
    if token := options.environment.get(TOKEN):
        return token, ""
    if run_token is not None:
        return run_token, ""
    if config is None:
        return None, f"name the token with --token-file FILE, or in {TOKEN}"
    if config.admin.token is not None:
        return config.admin.token.get_secret_value(), ""
    return _from_file(Folder.of(config).token_file)


def _from_file(file: Path) -> tuple[str | None, str]:
    try:
        text = read_regular(file).decode()
        if text.startswith("\ufeff"):
            return None, f"{file} begins with a byte order mark; save it as UTF-8 without one"
        return text.strip(), ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        return None, f"{file} cannot be read ({reason}); run this as the process's user"


def _own_certificate(config: Config) -> Path | None:
    """Return the certificate of a process that was found by its configuration."""
    return None if config.admin.tls is None else config.admin.tls.certificate_file
