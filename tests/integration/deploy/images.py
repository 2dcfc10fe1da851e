"""Building and running images without an engine: debootstrap, buildah, podman and runc."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[3]

#: The programs, which have the names of their Debian packages.
PACKAGES = ("buildah", "podman", "runc", "debootstrap")

#: Seconds for the longest step, the build on two busy cores: four times what it takes on idle ones.
BUILD_TIMEOUT = 1200.0

#: Seconds for the packages of the base, which come from a mirror.
BOOTSTRAP_TIMEOUT = 600.0

#: Seconds for what takes a few on any machine.
TRIVIAL_TIMEOUT = 120.0

#: Bytes of disk for the base, the image and the layers of both.
NEEDED_SPACE = 10e9

#: A container may not have more than we have, where we are in one ourselves; and a health check
#: that runs by itself takes a systemd.
_LIMITS = ("--ulimit=nofile=1024:20000", "--ulimit=nproc=1000:4000", "--no-healthcheck")

#: Where a build finds the certificates of this machine, which may be those of a mirror.
_CERTIFICATES = "/run/build-certificates.crt"


def require_builder(directory: Path) -> None:
    """Skip where images cannot be built in a folder, and say what is missing."""
    missing = [name for name in PACKAGES if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("building an image without an engine takes root")
    free = shutil.disk_usage(directory).free
    if free < NEEDED_SPACE:
        pytest.skip(f"an image takes {NEEDED_SPACE:.0e} bytes, {directory} has {free:.0e} free")


class Images:
    """A store of images and containers in a folder of its own. All methods block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._store = [f"--root={directory}/store", f"--runroot={directory}/run"]
        self._store += ["--storage-driver=overlay"]
        self._containers: list[str] = []

    def base(self, name: str, suite: str = "bookworm") -> None:
        """Make the smallest Debian there is an image; skip where no container runs of it."""
        root = self._directory / "base"
        with _or_skipped(f"debootstrap made no {suite}"):
            command = ["debootstrap", "--variant=minbase", suite, str(root)]
            _run(command, timeout=BOOTSTRAP_TIMEOUT)
        for package in (root / "var" / "cache" / "apt" / "archives").glob("*.deb"):
            package.unlink()
        _trust(root)
        archive = self._directory / "base.tar"
        _run(["tar", "--directory", str(root), "--create", "--file", str(archive), "."])
        shutil.rmtree(root)
        with _or_skipped("no container runs on this machine"):
            self._pack(name, archive)
            self._try_out(name)
        archive.unlink()

    def _pack(self, name: str, archive: Path) -> None:
        container = self.buildah("from", "scratch", timeout=TRIVIAL_TIMEOUT).stdout.strip()
        self.buildah("add", "--quiet", container, str(archive), "/", timeout=TRIVIAL_TIMEOUT)
        self.buildah("commit", "--quiet", container, name, timeout=TRIVIAL_TIMEOUT)
        self.buildah("rm", container, timeout=TRIVIAL_TIMEOUT)

    def _try_out(self, image: str) -> None:
        """Run nothing in each of the ways in which builds and tests run something."""
        container = self.buildah("from", image, timeout=TRIVIAL_TIMEOUT).stdout.strip()
        run = ("run", "--isolation=chroot", container, "--", "/bin/true")
        self.buildah(*run, timeout=TRIVIAL_TIMEOUT)
        self.buildah("rm", container, timeout=TRIVIAL_TIMEOUT)
        for network in ("none", "host"):
            options = [*_LIMITS, "--rm", f"--network={network}", "--cap-drop=ALL", "--read-only"]
            self.podman("run", *options, image, "/bin/true", timeout=TRIVIAL_TIMEOUT)

    def build(
        self, name: str, context: Path = ROOT, target: str | None = None, **arguments: str
    ) -> None:
        """Build the Dockerfile of a folder, of this repository if none is named, or one stage."""
        options = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        options += [] if target is None else [f"--target={target}"]
        settings = self._directory / "pip.conf"
        settings.write_text(_pip_settings(), encoding="utf-8")
        options += [f"--volume={settings}:/etc/pip.conf:ro"]
        options += [f"--volume={_certificates()}:{_CERTIFICATES}:ro"]
        # health checks are none of the OCI's format
        options += ["--isolation=chroot", "--format=docker", "--layers", f"--tag={name}"]
        self.buildah("bud", *options, str(context))

    def start(self, name: str, image: str, *options: str) -> None:
        """Start a container in the background."""
        self._containers.append(name)
        self.podman("run", *_LIMITS, "--detach", f"--name={name}", *options, image)

    def run(self, image: str, program: str, *arguments: str) -> str:
        """Run a program of an image to its end, cut off from everything; return its output."""
        options = [*_LIMITS, "--rm", "--network=none", "--cap-drop=ALL", f"--entrypoint={program}"]
        return self.podman("run", *options, image, *arguments).stdout

    def facts(self, image: str) -> Any:
        """Return what an image says of itself."""
        return json.loads(self.podman("inspect", "--type=image", image).stdout)[0]

    def buildah(
        self, *arguments: str, timeout: float = BUILD_TIMEOUT
    ) -> subprocess.CompletedProcess[str]:
        """Run buildah on the store."""
        return _run(["buildah", *self._store, *arguments], timeout=timeout)

    def podman(
        self, *arguments: str, check: bool = True, timeout: float = BUILD_TIMEOUT
    ) -> subprocess.CompletedProcess[str]:
        """Run podman on the store."""
        runtime = ["--cgroup-manager=cgroupfs", "--runtime", str(shutil.which("runc"))]
        runtime += [f"--tmpdir={self._directory}/tmp"]
        return _run(["podman", *self._store, *runtime, *arguments], check=check, timeout=timeout)

    def close(self) -> None:
        """Leave neither container nor mount nor file behind."""
        for name in self._containers:
            self.podman("rm", "--force", "--time=0", name, check=False)
        for command in (("rm", "--all"), ("rmi", "--all", "--force")):
            with suppress(AssertionError):
                self.buildah(*command)
        for mount in _mounts_below(self._directory):
            _run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(self._directory, ignore_errors=True)


@contextmanager
def _or_skipped(why: str) -> Iterator[None]:
    """Skip with what failed where the machine does not let commands do what is asked of any.

    It may be out of a mirror's reach, or in a container that has no namespaces of its own.
    """
    try:
        yield
    except (AssertionError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{why}: {str(error)[-300:]}")


def _run(
    command: Sequence[str], *, check: bool = True, timeout: float = BUILD_TIMEOUT
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0 or not check, (
        f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done


def _certificates() -> str:
    """Return the file of authorities that this machine trusts."""
    paths = ssl.get_default_verify_paths()
    found = os.environ.get("PIP_CERT") or paths.cafile or "/etc/ssl/certs/ca-certificates.crt"
    if not Path(found).is_file():
        pytest.skip(f"{found} is missing: apt-get install ca-certificates")
    return found


def _pip_settings() -> str:
    """Return settings by which the build's pip asks the same index as ours."""
    lines = ["[global]", f"cert = {_CERTIFICATES}"]
    for name in ("index-url", "extra-index-url"):
        value = os.environ.get(f"PIP_{name.replace('-', '_').upper()}")
        lines += [f"{name} = {value}"] if value else []
    return "\n".join(lines) + "\n"


def _trust(root: Path) -> None:
    """Make a system trust whom this machine does, once it installs Debian's authorities.

    Java in it asks a mirror for jars, and has a store of its own, made from the system's.
    """
    folder = root / "usr" / "local" / "share" / "ca-certificates"
    folder.mkdir(parents=True, exist_ok=True)
    end = "-----END CERTIFICATE-----\n"
    for number, text in enumerate(Path(_certificates()).read_text(encoding="utf-8").split(end)):
        if text.strip():
            (folder / f"machine-{number}.crt").write_text(text + end, encoding="utf-8")


def _mounts_below(directory: Path) -> list[str]:
    """Return what is mounted below a folder, the innermost first."""
    lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    places = [line.split()[1] for line in lines]
    return sorted((p for p in places if p.startswith(f"{directory}/")), reverse=True)
