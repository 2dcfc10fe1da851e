"""The workflow executor: processes called in sequence, in parallel, by choice and in loops.

docs/workflow.md is the guide. ``Workflow`` is the ``factory`` of the keyed channel that reduces
instances.
"""

from __future__ import annotations

from headrace.apps.workflow.definitions import Definition, FailurePolicy, Workflows
from headrace.apps.workflow.errors import CallFailedError, DefinitionError
from headrace.apps.workflow.local import LocalExecutor
from headrace.apps.workflow.messages import Assignment
from headrace.apps.workflow.reducer import Workflow
from headrace.apps.workflow.terms import (
    Call,
    Choice,
    Input,
    Item,
    Loop,
    Map,
    Parallel,
    Result,
    Retry,
    Sequence,
    Sleep,
    Try,
    Wait,
)

__all__ = [
    "Assignment",
    "Call",
    "CallFailedError",
    "Choice",
    "Definition",
    "DefinitionError",
    "FailurePolicy",
    "Input",
    "Item",
    "LocalExecutor",
    "Loop",
    "Map",
    "Parallel",
    "Result",
    "Retry",
    "Sequence",
    "Sleep",
    "Try",
    "Wait",
    "Workflow",
    "Workflows",
]
