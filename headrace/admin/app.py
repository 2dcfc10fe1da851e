"""The ASGI application: endpoints, errors, access and the OpenAPI document."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer

from headrace.admin.access import Guard, Rules
from headrace.admin.changes import Changes
from headrace.admin.looking import Lookout
from headrace.admin.page_files import SafeHeaders, page_routes
from headrace.admin.problems import handle_errors
from headrace.admin.reads import Reads
from headrace.clock import SYSTEM_CLOCK, Clock
from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace.admin.loglevels import LogLevels
    from headrace.admin.ports import Controller, Deployment, Process
    from headrace.admin.rates import Rates

_DESCRIPTION = """\
What a Headrace process is doing, and changes to it. Every change is a POST and takes the token, as
`Authorization: Bearer TOKEN`, or a client certificate. On loopback reading takes no token, but for
the configuration and the stacks; elsewhere it does, but for `/health`.
"""


def create_app(
    controller: Controller,
    process: Process,
    *,
    deployment: Deployment | None = None,
    rates: Rates,
    rules: Rules,
    log_levels: LogLevels,
    clock: Clock = SYSTEM_CLOCK,
) -> FastAPI:
    """Return the application. It starts no thread and opens nothing.

    Without a ``deployment`` there is no reload.
    """
    # pages with documentation load their scripts from elsewhere
    app = FastAPI(
        title="Headrace",
        version=VERSION,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
    )
    handle_errors(app)
    # the guard has looked at the token by then: this is for the OpenAPI document
    bearer = Depends(HTTPBearer(auto_error=False, description="The token of the process."))
    lookout = Lookout(controller, process, deployment, rates=rates, clock=clock)
    changes = Changes(controller, process, deployment, log_levels=log_levels, clock=clock)
    reads = Reads(controller, process, lookout, clock)
    guarded = partial(rules.needs_proof, "GET")
    app.include_router(reads.router(bearer, guarded), tags=["look"])
    app.include_router(changes.router(dependencies=[bearer]), tags=["change"])
    app.router.routes.extend(page_routes())
    app.add_middleware(Guard, rules=rules)
    app.add_middleware(SafeHeaders)
    return app
