"""Rows and states of running members, wherever they are: :class:`StateClient`."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from threading import Lock
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

import httpx

from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError, HeadraceError, UnreachableError
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.streams.errors import QuestionError
from headrace.ops.admin.key_paths import place_of_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

#: A key: text, a number, bytes, or several parts as a topology's group has them.
Key: TypeAlias = "str | int | bytes | tuple[str | int, ...]"

#: A time: a ``datetime``, in UTC where it says no other, or milliseconds since 1970.
Moment: TypeAlias = "datetime | int"

#: Seconds until members are asked again after the first failure, doubled up to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

#: Seconds that a member's ``Retry-After`` counts for at most: another one may be sooner.
_LONGEST_RETRY = 5.0

#: Seconds in which a member has to be connected to, and to answer.
_CONNECT_TIMEOUT, _ANSWER_TIMEOUT = 3.0, 10.0

#: Members that a question is led to, one by the other, before it is asked again.
_MOST_LED = 4

#: Rows of a page.
_PAGE = 1000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class StandbyCopy(NamedTuple):
    """A copy of another member's partition: it has the changelog to ``offset``.

    ``lag`` are the offsets that it is behind, None while that is not known.
    """

    offset: int
    lag: int | None


class StateWindow(NamedTuple):
    """The bounds of a window. Of sessions and sliding windows the end is a record's time."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class StateRow:
    """A committed row of a store, or a state of a keyed channel.

    ``row`` has the fields that the operator writes; it is the state of a reducer. ``problem`` says
    why it cannot be shown, or why a key of a channel is in quarantine. ``time`` is that of its
    latest record. It is of exactly the records of ``partition`` before ``offsets``, by topic; of a
    ``standby``, which says how far that is, there are none.
    """

    key: str
    row: Any
    partition: int
    offsets: Mapping[str, int]
    window: StateWindow | None = None
    time: datetime | None = None
    timers: Mapping[str, datetime] = field(default_factory=dict)
    problem: str | None = None
    standby: StandbyCopy | None = None


class StateClient:
    """Asks the members of a group for what they have committed. Any thread; a context manager.

    Each question goes to the member that has the key's partition, as far as that is known, and
    follows it where it went. While a partition moves, is restored or has no owner, it is asked for
    again until ``timeout`` is over.

    Raises:
        ConfigError: ``ca_file`` cannot be used, or an address is none.
        QuestionError: a question is refused, or its partition is not there in time; ``name`` says
            why, as the API has it.
        UnreachableError: no member answered in time.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str | None = None,
        timeout: float = 30.0,
        ca_file: Path | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Define the members by the addresses of their APIs; connects to none yet.

        Args:
            urls: addresses such as ``http://host:9465``, of one member at least. Others are found
                by what these answer.
            token: what lets in at all of them; members that answers lead to get it, too.
            timeout: seconds that a question may take.
            ca_file: certificates of who signs theirs, in place of the system's.
            transport: what requests go through in place of the network, for tests.
        """
        if not urls:
            raise ConfigError(["name one member at least, by the address of its API"])
        try:
            verify = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError([f"{ca_file} cannot be used: {error}"]) from error
        self._client = httpx.Client(
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            verify=verify,
            transport=transport,
            # no proxy of the environment's may see the token
            trust_env=False,
        )
        self._asker = _Asker(self._client, _Members(urls), timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def store(self, topology: str, store: str, *, stale: bool = False) -> StoreOfTopology:
        """Return a store of a topology, to be asked; sends nothing yet.

        ``stale``: a member with a copy of the partition may answer in place of its owner, also
        while there is none. What the copy lacks is as if it were not there.
        """
        return StoreOfTopology(self._asker, topology, store, stale=stale)

    def channel(self, name: str, *, stale: bool = False) -> StateOfChannel:
        """Return the state of a keyed channel, to be asked; sends nothing yet.

        ``stale`` is as of :meth:`store`.
        """
        return StateOfChannel(self._asker, name, stale=stale)


class StoreOfTopology:
    """A store of a topology. Each call blocks, and raises what :class:`StateClient` says."""

    def __init__(self, asker: _Asker, topology: str, store: str, *, stale: bool) -> None:
        self._asker = asker
        self._said = {"stale": "true"} if stale else {}
        self._path = f"/api/v1/topologies/{_quoted(topology)}/stores/{_quoted(store)}"

    def get(self, key: Key) -> StateRow | None:
        """Return the row of a key, None where there is none. Of windows it is the latest one."""
        try:
            rows = self._rows_of(key, {})
        except QuestionError as error:
            if error.name == "unknown_key":
                return None
            raise
        return rows[-1] if rows else None

    def windows(
        self, key: Key, since: Moment | None = None, until: Moment | None = None
    ) -> list[StateRow]:
        """Return the windows of a key that are not over, the latest one last.

        Those from ``since`` on and before ``until``: by the start, of sessions and sliding windows
        by the end.
        """
        bounds = {"from": since, "to": until}
        return self._rows_of(
            key, {name: _milliseconds(at) for name, at in bounds.items() if at is not None}
        )

    def rows(self, prefix: str = "", window: Moment | None = None) -> Iterator[StateRow]:
        """Yield the rows of all partitions, by partition, window and key.

        Those whose keys begin with ``prefix``, and of windows those that start at ``window``, or
        end there. A page is of one moment, and one that follows of a later one.
        """
        chosen: dict[str, Any] = {"limit": _PAGE, **self._said}
        if prefix:
            chosen["prefix"] = prefix
        if window is not None:
            chosen["window"] = _milliseconds(window)
        partition, partitions = 0, 1
        while partition < partitions:
            after: str | None = None
            while True:
                more = {} if after is None else {"after": after}
                query = {"partition": partition, **chosen, **more}
                page = self._asker.ask(_Question(self._path, "", query, partition=partition))
                partitions = page["partitions"]
                at = {each["partition"]: each for each in page["positions"]}
                yield from (_row_of(each, at[each["partition"]]) for each in page["rows"])
                after = page["next"]
                if after is None:
                    break
            partition += 1

    def _rows_of(self, key: Key, query: Mapping[str, Any]) -> list[StateRow]:
        place, named = _place_of(key)
        said = {**query, **self._said, **named}
        found = self._asker.ask(_Question(self._path, place, said, key=_bytes_of(key)))
        return [_row_of(each, found["position"]) for each in found["rows"]]


class StateOfChannel:
    """The state of a keyed channel. Each call blocks, and raises what :class:`StateClient` says."""

    def __init__(self, asker: _Asker, name: str, *, stale: bool) -> None:
        self._asker = asker
        self._said = {"stale": "true"} if stale else {}
        self._path = f"/api/v1/channels/{_quoted(name)}/state"

    def get(self, key: Key) -> StateRow | None:
        """Return the state of a key, None where it has none."""
        place, named = _place_of(key)
        question = _Question(self._path, place, {**self._said, **named})
        try:
            found = self._asker.ask(question)
        except QuestionError as error:
            if error.name == "unknown_key":
                return None
            raise
        return StateRow(
            key=found["key"],
            row=found["state"],
            partition=found["partition"],
            offsets=found["offsets"],
            timers={each["name"]: _moment(each["due"]) for each in found["timers"]},
            problem=found["problem"] or found["quarantined"],
            # members of an earlier version answer for themselves alone
            standby=_copy_of(found.get("standby")),
        )


# --- what is asked, and whom ----------------------------------------------------------------------


class _Question(NamedTuple):
    """A request below ``path``, of a key or of a partition."""

    path: str
    place: str
    query: Mapping[str, Any]
    key: bytes | None = None
    partition: int | None = None

    @property
    def target(self) -> str:
        """Return what follows the address of a member."""
        query = f"?{urlencode(self.query)}" if self.query else ""
        return f"{self.path}{self.place}{query}"


class _Members:
    """The addresses of members, and which of them had which partition. Any thread."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._lock = Lock()
        self._named = list(dict.fromkeys(url.rstrip("/") for url in urls))
        #: Those that are named, and those that answers led to.
        self._urls = [*self._named]
        self._next = self._urls[0]
        self._owners: dict[tuple[str, int], str] = {}
        self._counts: dict[str, int] = {}

    def find(self, question: _Question) -> str:
        """Return whom to ask first."""
        with self._lock:
            partition, count = question.partition, self._counts.get(question.path)
            if partition is None and question.key is not None and count:
                partition = partition_of(question.key, count)
            known = None if partition is None else self._owners.get((question.path, partition))
            return self._next if known is None else known

    def learn(self, question: _Question, url: str, document: Mapping[str, Any]) -> None:
        """Remember who answered."""
        with self._lock:
            self._next = url
            if url not in self._urls:
                self._urls.append(url)
            self._counts[question.path] = document.get("partitions", 0)
            for each in document.get("positions", [document.get("position")]):
                if each is not None and each.get("standby") is None:
                    self._owners[question.path, each["partition"]] = url

    def forget(self, url: str) -> None:
        """Remove what is known of a member that does not answer."""
        with self._lock:
            self._owners = {place: each for place, each in self._owners.items() if each != url}
            self._urls = [each for each in self._urls if each != url or each in self._named]

    def next_after(self, url: str) -> str:
        """Return whom to ask after a member that could not answer."""
        with self._lock:
            at = self._urls.index(url) + 1 if url in self._urls else 0
            self._next = self._urls[at % len(self._urls)]
            return self._next


class _Asker:
    """Asks members one after the other, until one answers. Any thread."""

    def __init__(self, client: httpx.Client, members: _Members, timeout: float) -> None:
        self._client, self._members, self._timeout = client, members, timeout

    def ask(self, question: _Question) -> Any:
        """Return the document that answers a question. Blocks until the time-out at most."""
        deadline = Deadline.after(self._timeout)
        pause = _FIRST_PAUSE
        base = self._members.find(question)
        while True:
            answer, base = self._follow(base, base + question.target, deadline)
            if isinstance(answer, UnreachableError):
                failure: HeadraceError = answer
                wait = pause
                self._members.forget(base)
            elif answer.is_success:
                document = _document(answer, base)
                self._members.learn(question, base, document)
                return document
            else:
                failure = _refusal(answer, base)
                if answer.status_code not in _LATER:
                    raise failure
                wait = max(pause, _retry_after(answer))
            if deadline.remaining <= wait:
                raise failure
            sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)
            base = self._members.next_after(base)

    def _follow(
        self, base: str, url: str, deadline: Deadline
    ) -> tuple[httpx.Response | UnreachableError, str]:
        """Return what a member answers, or one that it leads to, and the address of that."""
        for _ in range(_MOST_LED):
            timeout = httpx.Timeout(
                min(deadline.left, _ANSWER_TIMEOUT), connect=min(deadline.left, _CONNECT_TIMEOUT)
            )
            try:
                answer = self._client.get(url, timeout=timeout)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise ConfigError([f"{url} cannot be asked: {error}"]) from error
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
                return UnreachableError(f"{base} does not answer: {reason}"), base
            if answer.status_code != HTTPStatus.TEMPORARY_REDIRECT:
                break
            url = answer.headers.get("location", "")
            base = _led_to(url, base)
        # while a partition moves, members may lead to each other
        return answer, base


def _led_to(url: str, base: str) -> str:
    """Return the address of the member that a member leads to.

    Raises:
        UnreachableError: it is none, or one that the token is not to go to.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise UnreachableError(f"{base} leads to {url or 'nowhere'}; is it Headrace?")
    if base.startswith("https:") and parts.scheme != "https":
        raise UnreachableError(
            f"{base} leads to {url}, where the token could be read on the way; set admin.tls of "
            "that member, or its admin.advertised_url"
        )
    return f"{parts.scheme}://{parts.netloc}"


# --- what is answered -----------------------------------------------------------------------------

#: Answers that another member gives, or the same one later.
_LATER = {
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.SERVICE_UNAVAILABLE,
}


def _document(answer: httpx.Response, base: str) -> Any:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UnreachableError(f"{base} answered {answer.status_code}; is it Headrace?")
    return found


def _refusal(answer: httpx.Response, base: str) -> QuestionError:
    found = _document(answer, base)
    if "next_step" not in found:
        raise UnreachableError(f"{base} answered {answer.status_code}; is it Headrace?")
    return QuestionError(
        found["error"], found["message"], value=found["value"], next_step=found["next_step"]
    )


def _retry_after(answer: httpx.Response) -> float:
    text = answer.headers.get("retry-after", "")
    return min(float(text), _LONGEST_RETRY) if text.isdecimal() else 0.0


def _row_of(found: Mapping[str, Any], position: Mapping[str, Any]) -> StateRow:
    window, standby = found["window"], position.get("standby")
    return StateRow(
        key=found["key"],
        row=found["row"],
        partition=found["partition"],
        offsets=position["offsets"],
        window=None
        if window is None
        else StateWindow(_moment(window["start"]), _moment(window["end"])),
        time=None if found["time"] is None else _moment(found["time"]),
        timers={each["name"]: _moment(each["due"]) for each in found["timers"]},
        problem=found["problem"],
        standby=_copy_of(standby),
    )


def _copy_of(standby: Mapping[str, Any] | None) -> StandbyCopy | None:
    return None if standby is None else StandbyCopy(standby["position"], standby["lag"])


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _milliseconds(moment: Moment) -> int:
    if isinstance(moment, int):
        return moment
    at = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (at - _EPOCH) // _MILLISECOND


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _place_of(key: Key) -> tuple[str, Mapping[str, str]]:
    """Return what stands in the path for a key, and what the query says of that."""
    text = _text_of(key)
    if isinstance(key, bytes):
        return f"/{text}", {"hex": "true"}
    place, named = place_of_key(text)
    return f"/{place}", named


def _text_of(key: Key) -> str:
    """Return a key as a request has it."""
    if isinstance(key, bytes):
        return key.hex()
    if isinstance(key, str):
        return key
    return json.dumps(list(key) if isinstance(key, tuple) else key, separators=(",", ":"))


def _bytes_of(key: Key) -> bytes:
    """Return a key as a record has it, by which its partition is found."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, tuple):
        return json.dumps(list(key), ensure_ascii=False, separators=(",", ":")).encode()
    return _text_of(key).encode()
