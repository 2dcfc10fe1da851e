"""The ``admin`` section."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.config import load
from headrace.core.errors import ConfigError
from tests.unit.config.support import CHANNELS

if TYPE_CHECKING:
    from pathlib import Path


def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    """A short token is refused, with the way to make a better one and without showing it."""
    problem = _problem(tmp_path, "admin: {token: hunter2}")
    assert "admin.token" in problem
    assert "openssl rand" in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    "token",
    ["hunter2-hunter2-hunter2\\nX: y", "hunter2-hunter2-hunter2 ", "hunter2-hunter2-hunterü"],
)
def test_a_token_with_a_line_break_is_refused(tmp_path: Path, token: str) -> None:
    """A line break would end its header."""
    problem = _problem(tmp_path, f'admin: {{token: "{token}"}}')
    assert "admin.token (line 1): " in problem
    assert "has a line break" in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "headrace.example"])
def test_others_may_not_be_listened_for_in_plain_text_by_mistake(tmp_path: Path, host: str) -> None:
    """An address that others reach needs tls, or the word that plain text is meant."""
    assert "plain_text: true" in _problem(tmp_path, f"admin: {{host: '{host}'}}")
    file = tmp_path / "meant.yaml"
    file.write_text(f"admin: {{host: '{host}', plain_text: true}}\n{CHANNELS}")
    assert not load(file).admin.on_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_tls(tmp_path: Path, host: str) -> None:
    """Addresses of this machine alone are taken as they are."""
    file = tmp_path / "loopback.yaml"
    file.write_text(f"admin: {{host: '{host}'}}\n{CHANNELS}")
    assert load(file).admin.on_loopback


def test_one_port_cannot_serve_both(tmp_path: Path) -> None:
    """The metrics' own port has to be another one."""
    problem = _problem(tmp_path, "admin: {port: 9465}\nmetrics: {port: 9465}")
    assert "metrics.port" in problem


def test_trusted_proxies_are_addresses_and_networks(tmp_path: Path) -> None:
    """Both are taken as they are; names, and networks with an address's own bits, are refused."""
    file = tmp_path / "headrace.yaml"
    file.write_text(f"admin: {{trusted_proxies: [127.0.0.1, '10.0.0.0/8', '::1']}}\n{CHANNELS}")
    assert load(file).admin.trusted_proxies == ("127.0.0.1/32", "10.0.0.0/8", "::1/128")
    for value in ("proxy.example", "10.0.0.7/8", "'*'"):
        problem = _problem(tmp_path, f"admin: {{trusted_proxies: [{value}]}}")
        assert "admin.trusted_proxies[0]" in problem
        assert "an address such as" in problem


@pytest.mark.parametrize("url", ["one.example:9465", "https://", "https://me:secret@one.example"])
def test_an_advertised_address_is_one_that_can_be_followed(tmp_path: Path, url: str) -> None:
    """The address begins with its scheme, and has no password."""
    problem = _problem(tmp_path, f"admin: {{advertised_url: '{url}'}}")
    assert "admin.advertised_url" in problem
    assert "https://one.example:9465" in problem


def _problem(tmp_path: Path, section: str) -> str:
    file = tmp_path / "headrace.yaml"
    file.write_text(f"{section}\n{CHANNELS}")
    with pytest.raises(ConfigError) as caught:
        load(file)
    (problem,) = caught.value.problems
    return problem
