"""The dashboard against Grafana's own schema, as TypeScript: there is no server to ask."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana" / "dashboards" / "headrace.json"

#: What is installed into the test's own folder.
PACKAGES = ("@grafana/schema@11.6.16", "typescript@7.0.2")

_RAW = "./node_modules/@grafana/schema/dist/esm/raw"

#: The schema's types, with enumerations as the text that stands in the file.
_TYPES = f"""\
import type {{ Dashboard, Panel, RowPanel }} from "{_RAW}/dashboard/x/dashboard_types.gen";
import type * as stat from "{_RAW}/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as time from "{_RAW}/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
type Plain<T> = T extends string ? `${{T}}`
  : T extends Array<infer U> ? Array<Plain<U>>
  : T extends object ? {{ [K in keyof T]: Plain<T[K]> }} : T;
"""


@pytest.fixture(scope="module")
def grafana(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Grafana's schema and a compiler; skips where these cannot be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is missing: apt-get install --no-install-recommends npm")
    folder = tmp_path_factory.mktemp("grafana")
    (folder / "package.json").write_text("{}", encoding="utf-8")
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"npm cannot install {', '.join(PACKAGES)}: {done.stderr.decode()[-300:]}")
    return folder


def compiled(folder: Path, dashboard: dict[str, Any]) -> str:
    """Return what the compiler says of a dashboard; nothing when it fits."""
    constants = [
        f"export const part{number}: Plain<{kind}> = {json.dumps(value, indent=1)};\n"
        for number, (kind, value) in enumerate(parts(dashboard))
    ]
    (folder / "check.ts").write_text("".join([_TYPES, *constants]), encoding="utf-8")
    options = "--noEmit --strict --skipLibCheck --moduleResolution bundler --module esnext"
    command = [str(folder / "node_modules" / ".bin" / "tsc"), *options.split(), "check.ts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=300)
    return done.stdout.decode()


def parts(dashboard: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what has a type of its own, and that: a value with unknown keys does not fit."""
    # what the data source has of its own in a query is not in the schema
    own = {"expr", "step", "titleFormat", "textFormat"}
    marks = [
        {key: value for key, value in each.items() if key not in own}
        for each in dashboard["annotations"]["list"]
    ]
    yield "Dashboard", {**dashboard, "annotations": {"list": marks}}
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield "RowPanel", panel
            continue
        yield "Panel", panel
        yield {"stat": "stat", "timeseries": "time"}[panel["type"]] + ".Options", panel["options"]
        custom = panel["fieldConfig"]["defaults"].get("custom")
        if custom is not None:
            yield "time.FieldConfig", custom


def test_the_dashboard_fits_grafana_s_schema(grafana: Path) -> None:
    """No key is unknown, none is missing, and each value is one that Grafana has."""
    assert compiled(grafana, json.loads(DASHBOARD.read_text(encoding="utf-8"))) == ""


@pytest.mark.parametrize("key", ["timezon", "tittle"])
def test_the_check_finds_an_unknown_key(grafana: Path, key: str) -> None:
    """A key that Grafana would silently ignore is reported."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert f"'\"{key}\"' does not exist" in compiled(grafana, {**dashboard, key: "x"})
