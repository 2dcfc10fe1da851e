"""Daemons that log in at a secured broker: with a password, and past the end of their tokens."""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
import pytest
from deltalake import DeltaTable

from headrace.core.clock import Deadline
from headrace.daemon import ExitCode
from headrace.devstack.issuer import CLIENT
from headrace.devstack.jars import cached, connector_set
from headrace.devstack.secured import Secured
from headrace.devstack.stack import Blueprint, LocalStack
from headrace.kafka.users import put_password
from tests.brokers import Broker
from tests.integration.daemon.rig import Site, eventually, spark_section, wait_at_work
from tests.integration.daemon.test_until import numbered
from tests.kafka_sinks import committed_records
from tests.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.devstack.issuer import TokenIssuer
    from tests.integration.daemon.rig import Daemon

#: Seconds that a token lives, and those for a phase of a test on a busy machine.
LIFE, PHASE = 5, 120.0

_CODE = """
import pyarrow as pa


def values(table, batch):
    return pa.table({"value": table["value"]})


def places(df, batch):
    return df.selectExpr("CAST(value AS STRING) AS value")
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A stack whose issuer's tokens end soon."""
    blueprint = Blueprint(short_lived=True, secured=Secured(token_seconds=LIFE))
    with LocalStack.start(tmp_path_factory.mktemp("secured"), blueprint=blueprint) as stack:
        yield stack


@pytest.fixture
def site(secured: LocalStack, tmp_path: Path) -> Iterator[Site]:
    """A topic of the test's own, with an operator's hand on the broker."""
    site = Site(Broker(secured.bootstrap_servers), secured.zookeeper_hosts, tmp_path)
    (tmp_path / "jobs.py").write_text(_CODE, encoding="utf-8")
    yield site
    site.close()


@pytest.fixture
def issuer(secured: LocalStack) -> TokenIssuer:
    """The issuer of the stack."""
    assert secured.issuer is not None
    return secured.issuer


def document(site: Site, secured: LocalStack, *, oauth: bool, **channel: Any) -> dict[str, Any]:
    """Return a configuration that goes through the secured door."""
    assert secured.secured is not None
    return site.document(**channel) | {"kafka": secured.secured.section(oauth=oauth)}


def given(issuer: TokenIssuer) -> int:
    """Return how many tokens were requested so far."""
    return issuer.log_file.read_text(encoding="utf-8").count("POST /token")


def errors(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the events that an operator would be woken for."""
    return [each for each in daemon.events() if each["level"] in {"error", "critical"}]


def readiness(daemon: Daemon) -> str:
    """Return what the command says about a daemon."""
    config = str(daemon.directory / f"{daemon.name}.yaml")
    done = run_program([sys.executable, "-m", "headrace", "health", "--ready", "-c", config])
    return (done.stdout + done.stderr).strip()


def in_time(condition: Any) -> None:
    """Ask until the answer is yes, for as long as processes of this one are at work."""
    assert wait_at_work(condition, PHASE)


@pytest.mark.parametrize("oauth", [False, True], ids=["scram", "oauth"])
def test_a_daemon_logs_in(site: Site, secured: LocalStack, oauth: bool) -> None:
    """Records are delivered, and the offsets are committed, by each login."""
    site.broker.produce(site.partition(0), *numbered("a", 50))
    site.broker.produce(site.partition(1), *numbered("b", 50))
    daemon = site.daemon(document(site, secured, oauth=oauth)).start("--until", "latest")
    assert daemon.wait() == 0, daemon.text()
    assert sorted(site.seen()) == sorted(
        each.decode() for each in [*numbered("a", 50), *numbered("b", 50)]
    )
    assert site.offsets() == [50, 50]
    assert not errors(daemon)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_tokens_end_under_work_and_without(
    site: Site, secured: LocalStack, issuer: TokenIssuer
) -> None:
    """Each record is in the output once, after many tokens, and no line is an error."""
    out, letters = site.broker.create_topic(1), site.broker.create_topic(1)
    channel = {
        "processor": {"type": "arrow", "reducer": "jobs:values"},
        "sink": {"type": "kafka", "topic": out},
        "rejects": {"failing": "dead_letter", "topic": letters},
    }
    daemon = site.daemon(document(site, secured, oauth=True, **channel)).start()
    daemon.wait_event("assignment_complete")
    sent: list[bytes] = []

    def work() -> None:
        values = numbered(f"r{len(sent)}", 20)
        for number in (0, 1):
            site.broker.produce(site.partition(number), *values[number::2])
        sent.extend(values)

    def arrived() -> Counter[str]:
        return Counter(value for value in committed_values(site, out))

    for _ in range(2):
        until = given(issuer) + 30
        while given(issuer) < until:
            work()
            in_time(lambda: sum(arrived().values()) >= len(sent))
        idle_until = given(issuer) + 20
        in_time(lambda until=idle_until: given(issuer) >= until)
    work()
    in_time(lambda: sum(arrived().values()) >= len(sent))
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.text()
    assert arrived() == Counter(value.decode() for value in sent)
    assert not errors(daemon)
    assert "columnar_fetch_unavailable" not in {event["event"] for event in daemon.events()}


def committed_values(site: Site, topic: str) -> list[str]:
    """Return what readers of committed records find in a topic."""
    values = (record.value() for record in committed_records(site.broker.address, topic))
    return [value.decode() for value in values if value is not None]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_spark_reads_past_the_end_of_tokens(
    site: Site, secured: LocalStack, issuer: TokenIssuer
) -> None:
    """The readers of Spark's JVM log in with the same section, and each record is there once."""
    made = document(site, secured, oauth=True)
    connector = str(cached(connector_set())[0].parent)
    made["spark"] = spark_section(1, driver_memory="512MiB", connector=connector)
    table = site.directory / "table"
    made["channels"]["main"] |= {
        "source": "by_reference",
        "processor": {"type": "spark", "reducer": "jobs:places"},
        "sink": {"type": "delta", "path": str(table)},
    }
    daemon = site.daemon(made).start()

    def rows() -> Counter[str]:
        if not (table / "_delta_log").exists():
            return Counter()
        return Counter(DeltaTable(table).to_pyarrow_table()["value"].to_pylist())

    for number in range(3):
        site.broker.produce(site.partition(number % 2), *numbered(f"round-{number}", 100))
        in_time(lambda number=number: sum(rows().values()) >= 100 * (number + 1))
        until = given(issuer) + 20
        in_time(lambda until=until: given(issuer) >= until)
    sent = [each for number in range(3) for each in numbered(f"round-{number}", 100)]
    assert rows() == Counter(value.decode() for value in sent)
    assert not errors(daemon)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_work_waits_for_an_issuer_that_is_away(
    site: Site, secured: LocalStack, issuer: TokenIssuer
) -> None:
    """Work goes on by itself once there are tokens again, and each record is delivered once."""
    made = document(site, secured, oauth=True) | {"admin": {"enabled": True, "port": 0}}
    daemon = site.daemon(made).start()
    site.broker.produce(site.partition(0), *numbered("before", 20))
    eventually(lambda: len(site.seen()) == 20)
    eventually(lambda: readiness(daemon) == "ready")
    issuer.kill()
    try:
        # no client is let in with the token that has ended
        daemon.wait_event("partition_leader_unavailable", PHASE)
        in_time(lambda: "the leader of" in readiness(daemon))
        site.broker.produce(site.partition(0), *numbered("during", 20))
    finally:
        issuer.start()
    in_time(lambda: len(site.seen()) >= 40)
    in_time(lambda: readiness(daemon) == "ready")
    sent = [*numbered("before", 20), *numbered("during", 20)]
    assert Counter(site.seen()) == Counter(value.decode() for value in sent)
    assert not errors(daemon)


@pytest.mark.parametrize("oauth", [False, True], ids=["scram", "oauth"])
def test_a_start_with_a_wrong_secret_says_that_the_login_is_refused(
    site: Site, secured: LocalStack, oauth: bool
) -> None:
    """The process ends with the words of the broker, or of the issuer, in place of a silence."""
    made = document(site, secured, oauth=oauth)
    login, secret = ("oauth", "client_secret") if oauth else ("sasl", "password")
    made["kafka"][login][secret] = "not-the-secret"
    daemon = site.daemon(made).start("--until", "latest")
    assert daemon.wait() == ExitCode.NOT_STARTED, daemon.text()
    (ended,) = [each for each in daemon.events() if each["event"] == "not_started"]
    assert "A login was refused" in ended["error"]
    assert ("token" if oauth else "SASL") in ended["error"]
    assert "not-the-secret" not in daemon.text()


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_password_that_was_replaced_is_taken_by_a_reload(site: Site, secured: LocalStack) -> None:
    """The channels connect again with the password that the file has now."""
    made = document(site, secured, oauth=False)
    assert secured.secured is not None
    former = Path(secured.secured.password_file).read_text(encoding="ascii").strip()
    file = site.directory / "password"
    file.write_text(former, encoding="ascii")
    made["kafka"]["sasl"]["password"] = f"${{file:{file}}}"
    daemon = site.daemon(made).start()
    site.broker.produce(site.partition(0), *numbered("before", 10))
    eventually(lambda: len(site.seen()) == 10)
    operator = {"bootstrap.servers": secured.bootstrap_servers}
    put_password(operator, CLIENT, "replaced", Deadline.after(PHASE))
    try:
        file.write_text("replaced", encoding="ascii")
        daemon.signal(signal.SIGHUP)
        daemon.wait_event("clients_reconnected")
        site.broker.produce(site.partition(0), *numbered("after", 10))
        in_time(lambda: len(site.seen()) == 20)
        assert not errors(daemon)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0, daemon.text()
    finally:
        put_password(operator, CLIENT, former, Deadline.after(PHASE))


class Renewed:
    """A file with a token that is renewed before its end, as Kubernetes does."""

    def __init__(self, path: Path, issuer: TokenIssuer) -> None:
        self.path = path
        self.count = 0
        self._issuer = issuer
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._over.wait(1.0):
            self._write()

    def _write(self) -> None:
        secret = self._issuer.secret_file.read_text(encoding="ascii").strip()
        form = {"grant_type": "client_credentials"}
        answer = httpx.post(
            self._issuer.token_url, data=form, auth=(CLIENT, secret), trust_env=False
        )
        new = self.path.with_suffix(".new")
        new.write_text(answer.json()["access_token"], encoding="ascii")
        new.replace(self.path)
        self.count += 1


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_token_in_a_file_is_read_again_before_it_ends(
    site: Site, secured: LocalStack, issuer: TokenIssuer
) -> None:
    """A daemon goes on past the end of several tokens, without a reload."""
    made = document(site, secured, oauth=True)
    with Renewed(site.directory / "token", issuer) as file:
        made["kafka"]["oauth"] = {"token_file": str(file.path)}
        daemon = site.daemon(made).start()
        for number in range(3):
            site.broker.produce(site.partition(0), *numbered(f"round-{number}", 10))
            in_time(lambda number=number: len(site.seen()) == 10 * (number + 1))
            until = file.count + 2 * LIFE
            in_time(lambda until=until: file.count >= until)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0, daemon.text()
    assert len(set(site.seen())) == 30
    assert not errors(daemon)
