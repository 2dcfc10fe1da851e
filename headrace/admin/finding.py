"""Where a process's API is, and what lets us in: from options, environment and configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.admin.tokens import Folder
from headrace.config import load
from headrace.errors import ConfigError, HeadraceError
from headrace.processes import is_alive

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.config import Config

#: What stands in for options that are not given.
URL, TOKEN, TOKEN_FILE = "HEADRACE_URL", "HEADRACE_TOKEN", "HEADRACE_TOKEN_FILE"


class UnreachableError(HeadraceError):
    """Nobody answers, or nobody knows where."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a command was told about its process, by options or the variables that replace them."""

    config: Path | None = None
    url: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


@dataclass(frozen=True, slots=True)
class Target:
    """An API and the way in. ``of`` says whose it is, for messages.

    ``no_token`` says why there is none, where there is none. ``own_certificate`` is the one that
    the process was configured to show: nothing else is trusted then, and under any name.
    """

    url: str
    of: str
    token: str | None = field(repr=False)
    no_token: str
    ca_file: Path | None = None
    own_certificate: Path | None = None
    certificate_file: Path | None = None


def find(options: Options) -> Target:
    """Return where the API is. Blocks for as long as files take.

    Raises:
        ConfigError: neither an address nor a configuration was named, or it cannot be used.
        UnreachableError: the configuration's process does not run on this machine.
    """
    url = options.url
    config = None if options.config is None else load(options.config)
    if url is None and config is None:
        raise ConfigError(
            ["name the process: its configuration with -c FILE, or its address with --url URL"]
        )
    token, reason = _token(options, config)
    return Target(
        url=url or _address(config, options.config),
        of=url or f"{options.config}",
        token=token,
        no_token=reason,
        ca_file=options.ca_file,
        own_certificate=None if url or options.ca_file else _own_certificate(config),
        certificate_file=options.certificate_file,
    )


def _address(config: Config | None, file: Path | None) -> str:
    assert config is not None, "an address was asked for without a configuration"
    if not config.admin.enabled:
        raise ConfigError([f"{file}: admin.enabled is false, so that there is no API to ask"])
    folder = Folder.of(config)
    found = folder.read_address()
    if found is None:
        raise UnreachableError(
            f"no process with the instance_id {config.instance_id} runs here "
            f"({folder.address_file} is missing or cannot be read); start it with "
            f"headrace run -c {file}, or name it by --url if it runs elsewhere"
        )
    if not is_alive(found.pid):
        raise UnreachableError(
            f"the process of {file}, {found.pid}, does not run any more; start it with "
            f"headrace run -c {file}"
        )
    return found.url


def _token(options: Options, config: Config | None) -> tuple[str | None, str]:
    """Return the token, or None and why there is none."""
    if options.token_file is not None:
        return _from_file(options.token_file)
    if token := options.environment.get(TOKEN):
        return token, ""
    if config is None:
        return None, f"name the token with --token-file FILE, or in {TOKEN}"
    if config.admin.token is not None:
        return config.admin.token.get_secret_value(), ""
    return _from_file(Folder.of(config).token_file)


def _from_file(file: Path) -> tuple[str | None, str]:
    try:
        return file.read_text(encoding="utf-8").strip(), ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        return None, f"{file} cannot be read ({reason}); run this as the process's user"


def _own_certificate(config: Config | None) -> Path | None:
    """Return the certificate of a process that was found by its configuration."""
    if config is None or config.admin.tls is None:
        return None
    return config.admin.tls.certificate_file
