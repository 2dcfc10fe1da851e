"""Faults that are found before any server is asked."""

from __future__ import annotations

import re
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.config import load
from headrace.controller.preflight import preflight
from headrace.core.errors import ConfigError
from headrace.core.extras import Extra
from tests.unit.config.support import CHANNELS

if TYPE_CHECKING:
    from pathlib import Path

ARROW = """
channels:
  flights:
    topics: [flights]
    group: statistics
    processor: {type: arrow, reducer: "a:b", decode: json, schema: SCHEMA}
    sink: noop
"""


def _refused(folder: Path, text: str) -> list[str]:
    """Return the problems of a file with ``text``, which by itself is as it should be."""
    file = folder / "headrace.yaml"
    file.write_text(text)
    load(file)
    with pytest.raises(ConfigError) as caught:
        load(file, also=preflight)
    return caught.value.problems


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("fetch.min.byts", "1", "is no property of librdkafka; see its CONFIGURATION.md"),
        ("fetch.min.bytes", "many", "'many' is not what librdkafka takes"),
        ("socket.keepalive.enable", "perhaps", "'perhaps' is not what librdkafka takes"),
        (
            "socket.timeout.ms",
            "-5",
            "-5 is not what librdkafka takes, which is 10 to 300000",
        ),
        ("security.protocol", "tls", "'tls' is not what librdkafka takes"),
        ("linger.ms", "soon", "'soon' is not what librdkafka takes"),
    ],
)
def test_properties_that_librdkafka_does_not_take_are_named(
    tmp_path: Path, name: str, value: str, sentence: str
) -> None:
    """Each with its line, also where several are wrong, which librdkafka tells one by one."""
    text = f"kafka:\n  properties:\n    nobody.knows: 1\n    {name}: {value}\n{CHANNELS}"
    assert _refused(tmp_path, text) == [
        (
            "kafka.properties.nobody.knows (line 3): is no property of librdkafka; see its "
            "CONFIGURATION.md"
        ),
        f"kafka.properties.{name} (line 4): {sentence}",
    ]


def test_properties_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    """Each by itself would do; the channel is named whose limits they break."""
    text = f"kafka: {{properties: {{session.timeout.ms: 700000}}}}\n{CHANNELS}"
    assert _refused(tmp_path, text) == [
        (
            "kafka.properties (line 1): do not go together in channel flights: librdkafka says "
            "`max.poll.interval.ms`must be >= `session.timeout.ms`"
        )
    ]


def test_no_secret_is_told(tmp_path: Path) -> None:
    """Librdkafka quotes values; those of secrets are masked."""
    (tmp_path / "secret").write_text("hunter2")
    text = f"kafka: {{properties: {{security.protocol: '${{file:secret}}'}}}}\n{CHANNELS}"
    (problem,) = _refused(tmp_path, text)
    assert problem.endswith("*** is not what librdkafka takes")
    key = "{security.protocol: ssl, ssl.key.pem: hunter2}"
    (problem,) = _refused(tmp_path, f"kafka: {{properties: {key}}}\n{CHANNELS}")
    assert "ssl.key.pem" in problem
    assert "hunter2" not in problem


def test_an_empty_secret_leaves_the_message_as_it_is(tmp_path: Path) -> None:
    """The text is masked for no empty secret, neither between its letters nor elsewhere."""
    (tmp_path / "secret").write_text("\n")
    login = "security.protocol: sasl_plaintext, sasl.mechanism: PLAIN, sasl.username: u"
    properties = f"{{{login}, sasl.password: '${{file:secret}}'}}"
    (problem,) = _refused(tmp_path, f"kafka: {{properties: {properties}}}\n{CHANNELS}")
    assert problem.endswith("librdkafka says sasl.username and sasl.password must be set")


def test_files_may_be_on_another_machine(tmp_path: Path) -> None:
    """A check runs where the certificates are not, and a plugin has properties of its own."""
    file = tmp_path / "headrace.yaml"
    for properties in (
        "{security.protocol: ssl, ssl.ca.location: /absent, ssl.keystore.location: /absent}",
        "{plugin.library.paths: absent, confluent.monitoring.interceptor.topic: t}",
        "{statistics.interval.ms: 1000, client.rack: a, fetch.max.bytes: 60000000}",
    ):
        file.write_text(f"kafka: {{properties: {properties}}}\n{CHANNELS}")
        load(file, also=preflight)


OAUTH = """
kafka:
  properties:
    security.protocol: SASL_PLAINTEXT
    MECHANISM: OAUTHBEARER
    sasl.oauthbearer.method: oidc
    sasl.oauthbearer.client.id: me
    sasl.oauthbearer.client.secret: hunter2
    sasl.oauthbearer.token.endpoint.url: http://127.0.0.1:PORT/token
"""


@pytest.mark.parametrize("mechanism", ["sasl.mechanism", "sasl.mechanisms"])
def test_no_token_is_requested(tmp_path: Path, mechanism: str) -> None:
    """A client that authenticates so would send its secret to the endpoint and wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as endpoint:
        port = str(endpoint.getsockname()[1])
        properties = OAUTH.replace("PORT", port).replace("MECHANISM", mechanism)
        file = tmp_path / "headrace.yaml"
        file.write_text(properties + CHANNELS)
        load(file, also=preflight)
        endpoint.setblocking(False)
        with pytest.raises(BlockingIOError):
            endpoint.accept()


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (
            "security.protocol: sasl_ssl, sasl.mechanism: OAUTHBEARER, session.timeout.ms: 700000",
            "must be >= `session.timeout.ms`",
        ),
        ("security.protocol: SASL_SSL, sasl.mechanism: OAUTHBEARER, ssl.key.pem: a", "ssl.key.pem"),
        ("security.protocol: SASL_SSL, sasl.mechanism: PLAIN", "sasl.username and sasl.password"),
    ],
)
def test_properties_of_a_login_are_checked(tmp_path: Path, properties: str, reason: str) -> None:
    """Limits and keys are checked always, names and passwords if the login takes them alone."""
    (problem,) = _refused(tmp_path, f"kafka: {{properties: {{{properties}}}}}\n{CHANNELS}")
    assert reason in problem


def test_librdkafka_s_own_log_is_not_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """``debug`` is for the log of clients that run, and is checked all the same."""
    file = tmp_path / "headrace.yaml"
    file.write_text(f"kafka: {{properties: {{debug: all}}}}\n{CHANNELS}")
    load(file, also=preflight)
    assert capfd.readouterr() == ("", "")
    (problem,) = _refused(tmp_path, f"kafka: {{properties: {{debug: most}}}}\n{CHANNELS}")
    assert problem.endswith("'most' is not what librdkafka takes")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("id LONGER", "'id LONGER' is not a list of columns: LONGER is not a type"),
        ("id", "'id' is not a list of columns: a type is expected in place of the end"),
        ("_kafka STRING", "'_kafka STRING' uses the reserved name '_kafka'"),
    ],
)
def test_a_schema_that_cannot_be_read_is_named(tmp_path: Path, schema: str, reason: str) -> None:
    """With its channel and field, though only the start would need it."""
    (problem,) = _refused(tmp_path, ARROW.replace("SCHEMA", f"'{schema}'"))
    assert problem.startswith(f"channels.flights.processor.schema (line 6): {reason}")


@pytest.mark.parametrize("schema", ["a INT, s VARCHAR(3)", "s STRUCT<x: char ( 10 )>"])
def test_a_text_of_limited_length_is_refused_for_spark(tmp_path: Path, schema: str) -> None:
    """Spark would refuse it with the first batch; a name or a comment may say the same."""
    spark = ARROW.replace("type: arrow", "type: spark")
    (problem,) = _refused(tmp_path, spark.replace("SCHEMA", f"'{schema}'"))
    assert "to which Spark decodes no JSON; write STRING" in problem
    fine = "`a varchar(3)` STRING COMMENT 'was CHAR(3)'"
    (tmp_path / "headrace.yaml").write_text(spark.replace("SCHEMA", f'"{fine}"'))
    load(tmp_path / "headrace.yaml", also=preflight)


def test_a_schema_for_a_decoder_may_have_bytes_and_nothing_that_is_not_known(
    tmp_path: Path,
) -> None:
    """The sentence says to which types values can be decoded."""
    custom = ARROW.replace("decode: json", 'decode: "acme:Decoder"')
    (tmp_path / "headrace.yaml").write_text(custom.replace("SCHEMA", "raw BINARY"))
    load(tmp_path / "headrace.yaml", also=preflight)
    (problem,) = _refused(tmp_path, custom.replace("SCHEMA", "'a MAP<STRING, INT>'"))
    assert "MAP is not a type that is decoded to; there are BOOLEAN" in problem


def test_check_ends_with_the_error_of_a_start(tmp_path: Path) -> None:
    """The exit code is 2, as for run."""
    file = tmp_path / "headrace.yaml"
    file.write_text(f"kafka: {{properties: {{nobody.knows: 1}}}}\n{CHANNELS}")
    result = CliRunner().invoke(app, ["check", "-c", str(file)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "kafka.properties.nobody.knows (line 1): is no property" in result.stderr
    file.write_text(CHANNELS)
    assert CliRunner().invoke(app, ["check", "-c", str(file)]).exit_code == 0


EXTRAS = """
tracing: {endpoint: "http://127.0.0.1:4318"}
metrics: {otlp: {endpoint: "http://127.0.0.1:4318"}}
logging: {otlp: {endpoint: "http://127.0.0.1:4318"}}
channels:
  reduced:
    {topics: [a], group: a, processor: {type: spark, sql: SELECT 1}, sink: {type: delta, path: t}}
  counted:
    topics: [b]
    group: b
    processor: {type: keyed, reducer: "a:b", engine: spark}
    sink: {type: kafka, topic: counts}
  by_airline:
    topics: [f]
    group: f
    processor: {type: rekey, key: value.airline}
    sink: {type: kafka, topic: by-airline}
  by_airline_here:
    topics: [g]
    group: g
    processor: {type: rekey, key: value.airline, engine: arrow}
    sink: {type: kafka, topic: by-airline-here}
  divided:
    topics: [e]
    group: e
    processor: {type: arrow, reducer: "a:b"}
    sink:
      type: several
      outputs:
        rows: {type: sql, url: "sqlite:///f", table: t}
        remote: {type: sql, url: "postgresql://u@h/d", table: t}
        other: {type: sql, url: "mariadb://u@h/d", table: t}
        lines: {type: jsonl, path: f}
  idle:
    {enabled: false, topics: [c], group: c, processor: {type: spark, sql: SELECT 1}, sink: noop}
  plain: {topics: [d], group: d, processor: {type: arrow, reducer: "a:b"}, sink: noop}
"""


def test_missing_extras_are_named_with_their_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the place that needs it; a disabled channel needs none."""
    for extra in Extra:
        for module in extra.libraries:
            monkeypatch.setitem(sys.modules, module, None)

    problems = _refused(tmp_path, EXTRAS)

    found = {problem.partition(" ")[0]: problem for problem in problems}
    assert {place: re.findall(r"headrace\[(\w+)\]", text) for place, text in found.items()} == {
        "tracing.endpoint": ["otel"],
        "metrics.otlp": ["otel"],
        "logging.otlp": ["otel"],
        "channels.reduced.processor.type": ["spark"],
        "channels.reduced.sink.type": ["delta"],
        "channels.counted.processor.type": ["keyed"],
        "channels.counted.processor.engine": ["spark"],
        "channels.by_airline.processor.engine": ["spark"],
        "channels.divided.sink.outputs.rows.type": ["sql"],
        "channels.divided.sink.outputs.remote.type": ["sql"],
        "channels.divided.sink.outputs.remote.url": ["sql"],
        "channels.divided.sink.outputs.other.type": ["sql"],
        "channels.divided.sink.outputs.other.url": ["mysql"],
    }
    assert "takes pyspark and pandas, which are" in found["channels.reduced.processor.type"]
    assert found["channels.reduced.sink.type"].endswith(
        "takes deltalake, which is not installed; pip install 'headrace[delta]'"
    )


def test_a_configuration_for_the_base_install_asks_for_no_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration whose extras are installed needs no further one either."""
    file = tmp_path / "headrace.yaml"
    file.write_text(EXTRAS)
    assert len(load(file, also=preflight).channels) == 7
    for extra in Extra:
        for module in extra.libraries:
            monkeypatch.setitem(sys.modules, module, None)
    file.write_text(ARROW.replace("SCHEMA", '"a INT"'))
    assert load(file, also=preflight).channels


def test_a_login_that_the_client_was_built_without_is_told_before_a_start(tmp_path: Path) -> None:
    """The wheels' librdkafka has no Kerberos: check says so, and once."""
    text = CHANNELS + "kafka: {properties: {security.protocol: SASL_SSL, sasl.mechanism: GSSAPI}}\n"
    (problem,) = _refused(tmp_path, text)
    assert re.search(r"sasl\.mechanism \(line \d+\): takes the login GSSAPI, which", problem)
