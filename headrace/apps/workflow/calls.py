"""Making a call: a process and its arguments come to an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.apps.workflow.errors import CallFailedError
from headrace.apps.workflow.messages import Assignment, fail_message, return_message
from headrace.core.user_text import describe_error, kinds_of, message_of, trace_of
from headrace.extensions.keyed.codecs import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Bytes of an answer; the brokers' own limit is a little above it.
_MOST_BYTES = 1_000_000

#: Characters of an error's text, and of its traceback, that go into an answer.
_TRACE_LENGTH = 4_000


def make_call(processes: Mapping[str, Callable[..., Any]], call: Assignment) -> tuple[str, bytes]:
    """Make a call; return how it ended, ``returned`` or ``failed``, and the answer. Blocks.

    Whatever a process raises is an answer, also where it would end the interpreter.
    """
    process = processes.get(call.process)
    if process is None:
        there = ", ".join(sorted(processes)) or "none"
        text = f"the worker has no process {call.process!r}; it has {there}"
        return "failed", to_json(fail_message(call, text, final=False))
    try:
        return "returned", _answer_of(call, process(call, **call.args))
    except BaseException as error:  # noqa: BLE001 - of a user's code, which may also exit
        # by its type: what it says of its class is users' code as well
        final = issubclass(type(error), CallFailedError)
        text = (message_of if final else describe_error)(error, _TRACE_LENGTH)
        trace = trace_of(error, _TRACE_LENGTH)
        kinds = kinds_of(error)
        return "failed", to_json(fail_message(call, text, trace, final=final, kinds=kinds))


def _answer_of(call: Assignment, result: Any) -> bytes:
    """Return the answer that a result makes.

    Raises:
        CallFailedError: it makes none; another attempt would have the effect again for nothing.
    """
    try:
        message = to_json(return_message(call, result))
    except (TypeError, ValueError, RecursionError) as error:
        text = f"{call.process} returned what JSON does not know: {message_of(error)}"
        raise CallFailedError(text) from None
    if len(message) > _MOST_BYTES:
        raise CallFailedError(f"the answer has {len(message)} bytes, and {_MOST_BYTES} are allowed")
    return message
