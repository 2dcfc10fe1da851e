"""Compiles the part in C when Headrace is made a package, and makes its README's links absolute.

Without a C compiler the package is the same but for that part: records are then fetched as objects.
HEADRACE_WHEEL_PLATFORM names the platforms of the wheel as its tag has them, where CC compiles for
others than this machine; ``any`` makes one without that part.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

FOLDER = Path("headrace", "kafka", "columnar")
SOURCE = FOLDER / "consumer.c"
LIBRARY = FOLDER / "libheadrace_consumer.so"

#: Manual pages, where scripts/man.py has written them.
MAN = Path("man")

#: What a link in Markdown to a file beside the README begins with.
RELATIVE_LINK = re.compile(r"\]\((?!#|[a-z]+:)")

PLATFORM_VARIABLE = "HEADRACE_WHEEL_PLATFORM"


class CompileHook(BuildHookInterface[Any]):
    """Puts the library beside its source, into the package and into an editable checkout."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a package with the library is for this platform, any Python 3."""
        platform = os.environ.get(PLATFORM_VARIABLE, "")
        if self.target_name == "wheel" and version == "standard" and Path(self.root, MAN).is_dir():
            build_data["shared_data"][str(MAN)] = "share/man/man1"
        if self.target_name != "wheel" or platform == "any":
            return
        failure = compile_library(Path(self.root))
        if failure is not None and platform:
            raise RuntimeError(f"no wheel for {platform}: {failure}")
        if failure is not None:
            self.app.display_warning(f"without columns from Kafka: {failure}")
            return
        platform = platform or sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(f"/{LIBRARY.as_posix()}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


class ReadmeHook(MetadataHookInterface):
    """Makes the README the package's page on an index, where relative links would lead nowhere."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Name the README with links to the repository's files."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        files = f"{metadata['urls']['Homepage']}/blob/main/"
        linked = RELATIVE_LINK.sub(f"]({files}", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": linked}


def compile_library(root: Path) -> str | None:
    """Compile the library of a checkout; return why it could not be, None if it could."""
    compiler, *options = shlex.split(os.environ.get("CC", "")) or ["cc"]
    command = [compiler, *options, "-O2", "-shared", "-fPIC"]
    files = ["-o", str(root / LIBRARY), str(root / SOURCE), "-ldl"]
    try:
        (root / LIBRARY).unlink(missing_ok=True)
        if shutil.which(compiler) is None:
            return "there is no C compiler; install gcc and libc6-dev, or what CC names"
        done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)  # noqa: S603 - a command line of our own
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else f"{compiler} failed: {done.stderr.strip()}"
