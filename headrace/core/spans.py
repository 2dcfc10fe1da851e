"""Spans and tracers as the rest of Headrace sees them: no-ops, unless an exporter listens."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from headrace.core.clock import Deadline
    from headrace.core.records import Record, TopicPartition

#: Headers of a record, in order.
Headers: TypeAlias = "list[tuple[str, bytes | None]]"


class Span(Protocol):
    """One piece of work in a trace. May be ended on another thread than it was begun."""

    @property
    def recording(self) -> bool:
        """Return whether what is told of it is kept."""

    @property
    def continued(self) -> bool:
        """Return whether it is a part of the trace that the headers of its one record name."""

    def child(self, name: str, others: Sequence[Span] = (), **attributes: str | int) -> Span:
        """Start a child span; ``others`` are spans that it belongs to as well."""

    def active(self) -> AbstractContextManager[object]:
        """Make spans that the block starts, in user code too, children of this one."""

    def record(self, record: Record) -> AbstractContextManager[object]:
        """Run the block as work for one record, in the trace of this span.

        Where it is of none, and where there are no others in the batch, as part of this work.
        """

    def headers(self) -> Headers:
        """Return what a record that it makes says of it; nothing where that is not wanted.

        Of work that is not recorded: that the trace which it is a part of is not.
        """

    def end(self, error: BaseException | None = None, outcome: str = "") -> None:
        """End the span with its outcome. Later calls change nothing."""


@dataclass(frozen=True, slots=True)
class BatchSource:
    """The partition a batch is from, and its owner. ``start`` is the position it begins at."""

    channel: str
    group: str
    partition: TopicPartition
    epoch: int
    start: int


class Tracer(Protocol):
    """A tracer, which begins traces. Any thread; does not block."""

    def batch(self, source: BatchSource, records: Sequence[Record]) -> Span:
        """Start the trace of a batch that is handed to the processor, or continue its record's.

        Of several records it is linked to the traces that they are of.
        """

    def close(self, deadline: Deadline) -> None:
        """Export what was recorded. Blocks until the deadline at most."""


class _NoSpan:
    """Work that is not traced."""

    recording = False
    continued = False
    _nothing = nullcontext()

    def child(self, *_: object, **__: object) -> Span:
        return self

    def active(self) -> AbstractContextManager[object]:
        return self._nothing

    def record(self, *_: object) -> AbstractContextManager[object]:
        return self._nothing

    def headers(self) -> Headers:
        return []

    def end(self, *_: object, **__: object) -> None:
        pass


#: Stands for each piece of work that is not traced.
NO_SPAN: Span = _NoSpan()


class _NoTracer:
    """Traces nothing."""

    def batch(self, *_: object, **__: object) -> Span:
        return NO_SPAN

    def close(self, deadline: Deadline) -> None:
        pass


#: The tracer of processes that trace nothing.
NO_TRACER: Tracer = _NoTracer()


_current: ContextVar[Span] = ContextVar("headrace_span", default=NO_SPAN)


@contextmanager
def use_span(span: Span) -> Iterator[Span]:
    """Run the block as the work of ``span``, and end that with it; exceptions pass through."""
    token = _current.set(span)
    try:
        with span.active():
            yield span
    except BaseException as error:
        span.end(error)
        raise
    finally:
        _current.reset(token)
    span.end()


def current_headers() -> Headers:
    """Return what records say that are made now, of the innermost :func:`use_span` around it."""
    return _current.get().headers()


def linked_span(spans: Sequence[Span], name: str, **attributes: str | int) -> Span:
    """Start a span for several others at once: a child of the first, linked to the rest.

    Where none is recorded it is a part of the first one's trace, if all go on with one: what is
    made then must not hide the trace of a record that was not looked at.
    """
    recorded = [span for span in spans if span.recording]
    if not recorded:
        traced = [span for span in spans if span is not NO_SPAN]
        goes_on = bool(traced) and all(span.continued for span in traced)
        return traced[0].child(name) if goes_on else NO_SPAN
    return recorded[0].child(name, recorded[1:], **attributes)
