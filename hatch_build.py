"""Compiles the parts in C when Headrace is made a package, and makes its README's links absolute.

Without a C compiler the package is the same but for those parts: records are then fetched as
objects, and JSON is decoded by Arrow. HEADRACE_WHEEL_PLATFORM names the platforms of the wheel as
its tag has them, where CC compiles for others than this machine; ``any`` makes one without them.
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

#: The compiled parts, each beside its sources.
LIBRARIES = (
    Path("headrace", "kafka", "columnar", "libheadrace_consumer.so"),
    Path("headrace", "formats", "native", "libheadrace_formats.so"),
)

#: Manual pages, where scripts/man.py has written them.
MAN = Path("man")

#: What a link in Markdown to a file beside the README begins with.
RELATIVE_LINK = re.compile(r"\]\((?!#|[a-z]+:)")

PLATFORM_VARIABLE = "HEADRACE_WHEEL_PLATFORM"


class CompileHook(BuildHookInterface[Any]):
    """Puts libraries beside their sources, into the package and into an editable checkout."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a package with the libraries is for this platform, any Python 3."""
        platform = os.environ.get(PLATFORM_VARIABLE, "")
        if self.target_name == "wheel" and version == "standard" and Path(self.root, MAN).is_dir():
            build_data["shared_data"][str(MAN)] = "share/man/man1"
        if self.target_name != "wheel" or platform == "any":
            return
        failure = compile_libraries(Path(self.root))
        if failure is not None and platform:
            raise RuntimeError(f"no wheel for {platform}: {failure}")
        if failure is not None:
            lacks = "without columns from Kafka, and without values decoded in C"
            self.app.display_warning(f"{lacks}: {failure}")
            return
        platform = platform or sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"] += [f"/{library.as_posix()}" for library in LIBRARIES]
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


def compile_libraries(root: Path) -> str | None:
    """Compile the libraries of a checkout; return why one could not be, None if all could."""
    compiler, *options = shlex.split(os.environ.get("CC", "")) or ["cc"]
    for library in LIBRARIES:
        failure = _compile([compiler, *options], root / library)
        if failure is not None:
            return failure
    return None


def _compile(compiler: list[str], library: Path) -> str | None:
    """Compile the sources beside a library; return why it could not be."""
    sources = map(str, sorted(library.parent.glob("*.c")))
    command = [*compiler, "-O2", "-shared", "-fPIC", "-o", str(library), *sources, "-ldl", "-lm"]
    try:
        library.unlink(missing_ok=True)
        if shutil.which(compiler[0]) is None:
            return "there is no C compiler; install gcc and libc6-dev, or what CC names"
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a command line of our own
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else f"{compiler[0]} failed: {done.stderr.strip()}"
