"""Asking the API, as the commands do."""

from __future__ import annotations

import re
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx

from headrace.admin.finding import UnreachableError
from headrace.errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from headrace.admin.finding import Target

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

    def __init__(self, target: Target) -> None:
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
            UnreachableError: nobody answers.
            AnswerError: the process refused.
        """
        return self._ask("GET", path)

    def post(self, path: str, body: dict[str, Any], wait: float = 0.0) -> Any:
        """Change something; the process may take ``wait`` seconds for it. Raises as ``get``."""
        sent = {key: value for key, value in body.items() if value is not None}
        return self._ask("POST", path, json=sent, timeout=TIMEOUT + wait)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
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


def _context(target: Target) -> ssl.SSLContext | bool:
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
