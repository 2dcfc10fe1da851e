"""Records as they pass, as lines of JSON for as long as a client reads them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import Query
from starlette.responses import Response, StreamingResponse

from headrace.channel.states import ChannelState
from headrace.channel.taps import MOST_BYTES, MOST_PER_SECOND, TapFilter
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.ops.admin.document import Document, Number, Offset, Seconds, moment, sendable
from headrace.ops.admin.models import ApiError
from headrace.ops.admin.ports import ProcessPhase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import Receive, Scope, Send

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.channel.taps import Tap, TappedRecord
    from headrace.core.clock import Clock
    from headrace.ops.admin.ports import Process
    from headrace.ops.admin.redaction import Redaction

#: What is sent: documents of JSON, one on each line.
MEDIA_TYPE = "application/x-ndjson"

_PARTITION = re.compile("(.+):([0-9]{1,9})")

#: Seconds between two looks at what has come.
_INTERVAL = 0.2

#: Records that are made to lines before others on the thread go on.
_AT_ONCE = 50

#: Seconds between two lines with counts, so that a reader knows that the tap is there.
_COUNTS_INTERVAL = 5.0

#: Seconds of the longest tap, and of one without a given length.
LONGEST = 3600.0
USUAL = 60.0

TapPartition = Annotated[
    str | None, Query(description="Only records of this partition, as TOPIC:N; null: of all.")
]
TapKey = Annotated[
    str | None, Query(description="Only records with this key, as text or, with hex, in digits.")
]
TapHex = Annotated[
    bool, Query(alias="hex", description="The key is written in hexadecimal digits.")
]
TapRate = Annotated[
    float, Query(gt=0, le=MOST_PER_SECOND, description="Records a second that are sent at most.")
]
TapLimit = Annotated[
    int | None, Query(ge=1, le=1 << 31, description="After how many records it ends; null: none.")
]
TapSeconds = Annotated[float, Query(ge=0, le=LONGEST, description="After how long it ends.")]
TapBy = Annotated[str, Query(max_length=100, description="Who looks, for the log.")]


class TapLine(Document):
    """A line of a tap: a record, counts now and then, or the end. Of others the fields are null."""

    kind: Literal["record", "counts", "end"]
    """The kind of line."""
    topic: str | None = None
    """The record's topic."""
    partition: Number | None = None
    """Its partition."""
    offset: Offset | None = None
    """Its own offset."""
    time: str | None = None
    """Its time; null: it has none."""
    key: str | None = None
    """Its key; what is not UTF-8 is in key_hex."""
    key_hex: str | None = None
    """Its key in hexadecimal digits, where it is not UTF-8."""
    value: str | None = None
    """Its value; what is not UTF-8 is in value_hex."""
    value_hex: str | None = None
    """Its value in hexadecimal digits, where it is not UTF-8."""
    value_bytes: Number | None = None
    """The size of its value; what is longer than 64 KiB is cut."""
    headers: list[list[str | None]] | None = None
    """Its headers, each a name and a value."""
    attempt: Number | None = None
    """The number of times that it was delivered, in the batches around it as well."""
    passed: Number | None = None
    """Of counts and the end: records of the channel, or of the partition, that passed."""
    shown: Number | None = None
    """Records that were sent."""
    unseen: Number | None = None
    """Records that were not checked for their key: only the first thousand of a batch are."""
    over_rate: Number | None = None
    """Records that were not sent because of the rate."""
    dropped: Number | None = None
    """Records that were not sent because lines were not read fast enough."""
    elapsed_s: Seconds | None = None
    """Seconds since the tap was opened."""
    reason: str | None = None
    """Of the end: limit, time, channel_ended or process_stopping."""


class _TapResponse(StreamingResponse):
    """Closes its tap whichever way it ends, also where the client reads not even one line."""

    def __init__(self, lines: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(lines, media_type=MEDIA_TYPE)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


class TapReads:
    """The endpoint of taps. ``redaction`` says what is masked of the next records."""

    def __init__(self, process: Process, redaction: Callable[[], Redaction], clock: Clock) -> None:
        self._process = process
        self._redaction = redaction
        self._clock = clock

    def open(
        self,
        channel: InboundKafkaChannel,
        wanted: TapFilter,
        *,
        by: str,
        limit: int | None,
        for_s: float,
        is_head: bool,
    ) -> Response:
        """Return an answer that goes on for as long as the tap does.

        Raises:
            RefusedError: the channel cannot be tapped.
        """
        if is_head:
            # there is no client to send records to
            return Response(media_type=MEDIA_TYPE)
        tap = channel.open_tap(wanted, by)
        lines = self._lines(channel, tap, limit, Deadline.after(for_s, self._clock), for_s)
        return _TapResponse(lines, partial(channel.close_tap, tap))

    async def _lines(
        self,
        channel: InboundKafkaChannel,
        tap: Tap,
        limit: int | None,
        deadline: Deadline,
        for_s: float,
    ) -> AsyncIterator[bytes]:
        counted = 0.0
        # at once: a client that waits for an answer knows that it is one
        yield _counts(tap, "counts", 0.0)
        while True:
            reason = self._reason(channel, tap, limit, deadline)
            left = _AT_ONCE if limit is None else limit - tap.counts.shown
            found = tap.take(min(_AT_ONCE, left))
            if found:
                redaction = self._redaction()
                yield b"".join(_line(_record(each, redaction)) for each in found)
            elapsed = for_s - deadline.remaining
            if reason is not None:
                yield _counts(tap, "end", elapsed, reason)
                return
            if elapsed - counted >= _COUNTS_INTERVAL:
                counted = elapsed
                yield _counts(tap, "counts", elapsed)
            if not found:
                await asyncio.sleep(deadline.at_most(_INTERVAL))

    def _reason(
        self, channel: InboundKafkaChannel, tap: Tap, limit: int | None, deadline: Deadline
    ) -> str | None:
        """Return why the tap ends, None while it goes on."""
        if limit is not None and tap.counts.shown >= limit:
            return "limit"
        if channel.state is not ChannelState.RUNNING:
            return "channel_ended"
        if self._process.phase is ProcessPhase.STOPPING:
            return "process_stopping"
        return "time" if deadline.expired else None


def _record(record: TappedRecord, redaction: Redaction) -> TapLine:
    key, key_hex = _text(redaction.key(record.key))
    value, value_hex = _text(redaction.value(record.value))
    time = record.timestamp
    return TapLine(
        kind="record",
        topic=record.partition.topic,
        partition=record.partition.partition,
        offset=record.offset,
        time=None if time is None or time < 0 else moment(time / 1000).isoformat(),
        key=key,
        key_hex=key_hex,
        value=value,
        value_hex=value_hex,
        value_bytes=record.value_bytes,
        headers=[
            [sendable(name), None if data is None else data.decode("utf-8", "backslashreplace")]
            for name, data in redaction.headers(record.headers)
        ],
        attempt=record.attempt,
    )


def _text(data: bytes | None) -> tuple[str | None, str | None]:
    """Return bytes as text, or in hexadecimal digits; what was cut within a character is text."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError as error:
        if len(data) == MOST_BYTES and error.start > MOST_BYTES - 4:
            return data.decode("utf-8", "ignore"), None
        return None, data.hex()


def _counts(
    tap: Tap, kind: Literal["counts", "end"], elapsed: float, reason: str | None = None
) -> bytes:
    counts = asdict(tap.counts)
    return _line(TapLine(kind=kind, **counts, elapsed_s=round(elapsed, 1), reason=reason))


def _line(line: TapLine) -> bytes:
    return line.model_dump_json(exclude_none=line.kind != "record").encode() + b"\n"


def tap_filter(partition: str | None, key: str | None, rate: float, *, is_hex: bool) -> TapFilter:
    """Return which records a request is for.

    Raises:
        ApiError: the partition or the key is not written as it has to be.
    """
    where = None
    if partition is not None:
        match = _PARTITION.fullmatch(partition)
        if match is None:
            raise _invalid("partition", partition, "TOPIC:N", "name it as in flights:3")
        where = TopicPartition(match[1], int(match[2]))
    try:
        chosen = None if key is None else bytes.fromhex(key) if is_hex else key.encode()
    except ValueError as error:
        digits = "in hexadecimal digits, two for each byte"
        raise _invalid("key", key or "", digits, "give it as in 6b6579, for key") from error
    return TapFilter(where, chosen, rate)


def _invalid(name: str, value: str, form: str, next_step: str) -> ApiError:
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"invalid_{name}",
        f"{name} {value} is not {form}",
        value=value,
        next_step=next_step,
    )
