"""Secrets with invisible characters, as editors put them into files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.types.secrets import invisible_fault
from tests.unit.config.support import CHANNELS, loaded, refused

if TYPE_CHECKING:
    from pathlib import Path

FAULTS = {
    "\ufeffhunter2": "begins with a byte order mark",
    "hunter2\r": "has a line break",
    "hun\r\nter2": "has a line break",
    "hunter2\n\n": "has a line break",
    "hunter2\0": "has a zero byte",
}

PLACES = {
    "sasl": "kafka: {{sasl: {{mechanism: PLAIN, username: u, password: {0}}}}}",
    "tls": "kafka: {{tls: {{certificate_file: /c, key_file: /k, key_password: {0}}}}}",
    "zookeeper": "zookeeper: {{digest: {{username: u, password: {0}}}}}",
}


@pytest.mark.parametrize("text", FAULTS)
@pytest.mark.parametrize("place", PLACES)
def test_a_secret_with_invisible_characters_is_refused_by_name(
    tmp_path: Path, place: str, text: str
) -> None:
    """The message has the fault without the secret, in each place of a secret."""
    problems = refused(tmp_path, CHANNELS + PLACES[place].format('"${SECRET}"'), {"SECRET": text})
    assert any("password (line" in each and FAULTS[text] in each for each in problems), problems
    assert not any("hunter2" in each for each in problems)


@pytest.mark.parametrize("text", FAULTS)
def test_a_property_that_is_a_secret_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """Also in kafka.properties, whose names are not ours."""
    section = 'kafka: {properties: {sasl.password: "${SECRET}"}}'
    (problem,) = refused(tmp_path, CHANNELS + section, {"SECRET": text})
    assert FAULTS[text] in problem
    assert "hunter2" not in problem


def test_a_property_of_several_lines_is_taken(tmp_path: Path) -> None:
    """A value that is neither password nor token may have lines, as a login of JAAS has."""
    section = 'kafka: {properties: {sasl.jaas.config: "${SECRET}"}}'
    loaded(tmp_path, CHANNELS + section, {"SECRET": "a required\n b=c;\n"})


@given(st.text(st.characters(exclude_characters="\r\n\0\ufeff", exclude_categories=["Cs"])))
def test_any_other_text_is_taken(text: str) -> None:
    """Blanks, signs of any script, and what looks like an escape."""
    assert invisible_fault(text) is None


def test_keys_in_pem_have_lines() -> None:
    """Both line ends are accepted; a byte order mark before them is not."""
    key = "-----BEGIN PRIVATE KEY-----\r\nMII\r\n-----END PRIVATE KEY-----\n"
    assert invisible_fault(key) is None
    assert invisible_fault(f"\ufeff{key}") is not None
