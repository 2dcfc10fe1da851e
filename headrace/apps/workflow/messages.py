"""The messages of a workflow executor's nodes to each other, and to listeners."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What the reducer reads: an instance is to start, a call has returned or failed, an instance is
#: told something, or is not to go on.
START = "Start"
RETURN = "Return"
FAIL = "Fail"
SIGNAL = "Signal"
CANCEL_INSTANCE = "CancelInstance"

#: What workers read.
ASSIGNMENT = "Assignment"
CANCEL = "Cancel"

#: What listeners read, in the words of the original.
EVENT_START = "PiEventStart"
EVENT_CALL = "PiEventCall"
EVENT_RETURN = "PiEventReturn"
EVENT_RESULT = "PiEventResult"
NO_RESULT = "PiFailureNoResult"
UNKNOWN_PROCESS = "PiFailureUnknownProcess"
NO_SUCH_INSTANCE = "PiFailureNoSuchInstance"
EXCEPTIONS = "PiFailureExceptions"
CALL_EXCEPTION = "PiFailureAtomicProcessException"

#: What the original had not: an instance was cancelled or terminated, or its time was over; a wait
#: or a sleep has begun, and is over; a signal has come; done calls are being undone; a Try goes on
#: with the term that takes its error.
CANCELLED = "PiFailureCancelled"
TERMINATED = "PiFailureTerminated"
TIMED_OUT = "PiFailureTimedOut"
EVENT_WAIT = "PiEventWait"
EVENT_RESUME = "PiEventResume"
EVENT_SIGNAL = "PiEventSignal"
EVENT_UNDO = "PiEventUndo"
EVENT_CATCH = "PiEventCatch"

#: The events that an instance ends with.
TERMINAL = frozenset(
    {EVENT_RESULT, NO_RESULT, UNKNOWN_PROCESS, EXCEPTIONS, CANCELLED, TERMINATED, TIMED_OUT}
)

#: The state of an instance after each step.
UPDATE = "PiiUpdate"


#: The members of an assignment, in the order of its fields.
_MEMBERS: dict[str, type] = {
    "instance": str,
    "ref": str,
    "attempt": int,
    "proc": str,
    "args": dict,
    "issued": int,
    "timeout": int,
}


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt of a call, as the process gets it. ``issued`` and ``timeout`` are in ms.

    ``cancelled`` is set when none waits for the answer any more: the instance has failed, or the
    time is over.
    """

    instance: str
    ref: str
    attempt: int
    process: str
    args: dict[str, Any]
    issued: int = 0
    timeout: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False)

    @property
    def key(self) -> str:
        """Return the key that each repetition of this attempt has, also after a crash."""
        return f"{self.call}/{self.attempt}"

    @property
    def call(self) -> str:
        """Return the key that all attempts of the call have: for effects that must not add up."""
        return f"{self.instance}/{self.ref}"

    @classmethod
    def of(cls, message: Any) -> Assignment:
        """Return the assignment that a message is.

        Raises:
            KeyError, TypeError: it is none.
        """
        for name, kind in _MEMBERS.items():
            if type(message[name]) is not kind:
                raise TypeError(f"{name} is {message[name]!r}, where a {kind.__name__} has to be")
        return cls(*(message[name] for name in _MEMBERS))


def start_message(instance: str, definition: str, args: dict[str, Any]) -> dict[str, Any]:
    """Return what has an instance start."""
    return {"type": START, "instance": instance, "definition": definition, "args": args}


def cancel_message(
    instance: str, reason: str, by: str, *, terminate: bool = False
) -> dict[str, Any]:
    """Return what ends an instance before its time; ``terminate``: without undoing anything."""
    message = {"type": CANCEL_INSTANCE, "instance": instance, "reason": reason, "by": by}
    return {**message, "terminate": True} if terminate else message


def signal_message(instance: str, name: str, value: Any, own: str) -> dict[str, Any]:
    """Return what tells an instance something; ``own`` is the id by which it counts once."""
    return {"type": SIGNAL, "instance": instance, "name": name, "value": value, "id": own}


def return_message(call: Assignment, result: Any) -> dict[str, Any]:
    """Return what says that a call has returned."""
    return _answer_header(RETURN, call) | {"obj": result}


def fail_message(
    call: Assignment, text: str, trace: str = "", *, final: bool, kinds: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what says that a call has failed; a ``final`` failure is not attempted again.

    ``kinds`` are the names of the error's class and of those that it is derived from.
    """
    found = _answer_header(FAIL, call) | {"msg": text, "trace": trace, "final": final}
    return found | {"kinds": list(kinds)} if kinds else found


def _answer_header(kind: str, call: Assignment) -> dict[str, Any]:
    return {"type": kind, "instance": call.instance, "ref": call.ref, "attempt": call.attempt}
