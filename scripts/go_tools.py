"""Build the checkers that are Go modules, in these versions, into ``.tools``: tests use them there.

    python3 scripts/go_tools.py

helm and kubeconform look at the chart (tests/integration/deploy/test_chart.py), actionlint at the
workflows (tests/unit/tooling/test_github.py). It takes Go, and some minutes the first time. Exit
code: 0 all are there; 1 one could not be built.

Only the standard library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".tools"

#: The programs, to their modules and versions.
MODULES = {
    "actionlint": "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12",
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.2",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0",
}


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
