"""Lines of librdkafka's own log, in ours."""

from __future__ import annotations

import logging

import pytest
from structlog.testing import capture_logs

from headrace.kafka import clients


@pytest.mark.parametrize(
    ("level", "facility", "expected"),
    [
        (logging.ERROR, "FAIL", "warning"),
        (logging.CRITICAL, "FAIL", "warning"),
        (logging.ERROR, "SASLAUTH", "warning"),
        (logging.INFO, "SASLREFRESH", "info"),
        (logging.ERROR, "FATAL", "error"),
    ],
)
def test_an_error_that_a_client_recovers_from_is_no_error(
    level: int, facility: str, expected: str
) -> None:
    """A broker that ends a connection to renew its login, or that is away, is no error."""
    bridge = clients.base({})["logger"]
    with capture_logs() as logs:
        bridge.log(level, "%s [%s] %s", facility, "rdkafka#consumer-1", "what happened")
    assert [(each["event"], each["log_level"]) for each in logs] == [("kafka_client", expected)]
