"""Where a process's API is, and what lets us in: from options, environment and configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.admin.tokens import Folder
from headrace.config import load
from headrace.errors import ConfigError, HeadraceError
from headrace.process_records import (
    NoRecordError,
    ProcessNotFoundError,
    SeveralProcessesError,
    find_process,
)
from headrace.processes import is_alive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.config import Config
    from headrace.process_records import ProcessRecord

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

    What is in the configuration matters only where no process left a record of the file.

    Raises:
        ConfigError: neither an address nor a configuration was named, or it cannot be used.
        UnreachableError: the configuration's process does not run on this machine.
    """
    url = options.url
    missing = ""
    if url is None and options.config is not None:
        try:
            return _recorded(_running(options.config), options)
        except NoRecordError as error:
            missing = str(error)
    config = None if options.config is None else _loaded(options.config, missing)
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


def process_url(file: Path) -> str:
    """Return where the process of a file serves its API. Raises and blocks as ``find`` does."""
    try:
        return _running(file).url
    except NoRecordError as error:
        return _address(_loaded(file, str(error)), file)


def _running(file: Path) -> ProcessRecord:
    """Return the process that runs with a file; of several the one that the configuration names.

    Raises:
        NoRecordError: there is no record of the file.
        ConfigError: there are several, and the configuration cannot be used to tell them apart.
        UnreachableError: it does not run any more, or its record cannot be read.
    """
    try:
        return find_process(file)
    except NoRecordError:
        raise
    except SeveralProcessesError as several:
        try:
            return find_process(file, load(file).instance_id)
        except (ConfigError, ProcessNotFoundError):
            raise ConfigError([str(several)]) from None
    except ProcessNotFoundError as error:
        raise UnreachableError(str(error)) from error


def _loaded(file: Path, missing: str) -> Config:
    """Load a configuration; where it cannot be used, ``missing`` says why it had to be."""
    try:
        return load(file)
    except ConfigError as error:
        raise ConfigError([*error.problems, *filter(None, [missing])]) from None


def _recorded(record: ProcessRecord, options: Options) -> Target:
    token, reason = _token(options, None, record.token)
    own = record.certificate_file
    return Target(
        url=record.url,
        of=f"{options.config}",
        token=token,
        no_token=reason,
        ca_file=options.ca_file,
        own_certificate=None if options.ca_file or own is None else Path(own),
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


def _token(
    options: Options, config: Config | None, run_token: str | None = None
) -> tuple[str | None, str]:
    """Return the token, or None and why there is none."""
    if options.token_file is not None:
        return _from_file(options.token_file)
    if token := options.environment.get(TOKEN):
        return token, ""
    if run_token is not None:
        return run_token, ""
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
