"""What is answered instead of a result: always the same shape, and never a traceback."""

from __future__ import annotations

import re
from difflib import get_close_matches
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import structlog
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from headrace.admin.documents import Problem
from headrace.errors import HeadraceError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

log = structlog.get_logger(__name__)

#: Characters of a value that are repeated to who sent it.
_QUOTED = 100


class ApiError(HeadraceError):
    """A request that is answered with a problem in place of a result."""

    def __init__(
        self,
        status: HTTPStatus,
        error: str,
        message: str,
        *,
        next_step: str,
        value: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.problem = Problem(
            error=error,
            message=message,
            value=None if value is None else value[:_QUOTED],
            next_step=next_step,
        )
        self.headers = headers

    def response(self) -> Response:
        """Return it as it goes over the wire."""
        return JSONResponse(
            self.problem.model_dump(mode="json"), self.status, dict(self.headers or {})
        )


def unknown(what: str, value: str, known: Iterable[str]) -> ApiError:
    """Return the error for a name that nothing has, with the one that was probably meant."""
    names = sorted(known)
    near = get_close_matches(value, names, 1)
    step = f"did you mean {near[0]}? " if near else ""
    there = f"there are {', '.join(names)}" if names else f"there is no {what} at all"
    return ApiError(
        HTTPStatus.NOT_FOUND,
        f"unknown_{what}",
        f"there is no {what} {value[:_QUOTED]}",
        value=value,
        next_step=f"{step}{there}",
    )


def internal_error() -> ApiError:
    """Return what is said of an error that was not foreseen; the log has it."""
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal_error",
        "the request failed by an error that Headrace did not foresee",
        next_step="look for admin_request_failed in the log, and report it",
    )


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return, for the OpenAPI document, with which statuses an endpoint answers a problem."""
    common = (400, 401, 403, 413, 500)
    return {
        status: {"model": Problem, "description": HTTPStatus(status).phrase}
        for status in sorted({*common, *statuses})
    }


def handle_errors(app: FastAPI) -> None:
    """Have every error of ``app`` answered as a problem."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(HeadraceError, _headrace_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).lower()
    return ApiError(
        HTTPStatus.CONFLICT, name, error.text, value=error.value, next_step=error.next_step
    ).response()


async def _headrace_error(_: Request, error: Exception) -> Response:
    """Answer what came from below: somebody that the process depends on did not do its part."""
    log.warning("admin_request_unanswered", error=str(error), kind=type(error).__name__)
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "unavailable",
        str(error),
        next_step="look at /api/v1/status for what does not answer, and ask again",
    ).response()


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(step) for step in first["loc"])
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid_request",
        f"{place}: {first['msg']}",
        value=place,
        next_step="correct the request; /openapi.json says what is accepted",
    ).response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    names = {
        HTTPStatus.NOT_FOUND: ("not_found", "there is nothing at this path"),
        HTTPStatus.METHOD_NOT_ALLOWED: ("method_not_allowed", "this path has no such method"),
    }
    status = HTTPStatus(error.status_code)
    name, message = names.get(status, ("bad_request", str(error.detail)))
    return ApiError(
        status,
        name,
        message,
        value=f"{request.method} {request.url.path}",
        next_step="/openapi.json has all paths and their methods",
        headers=error.headers,
    ).response()
