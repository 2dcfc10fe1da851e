"""Dockerfile, compose file and Kubernetes objects, as tools and as the program see them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.config import load
from headrace.signals import ENDING_MARGIN, LAST_WORDS_TIMEOUT
from headrace.version import VERSION

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose"
KUBERNETES = ROOT / "deploy" / "kubernetes" / "headrace.yaml"

#: Seconds beside its own limit for the stop after which a process has ended itself.
MARGIN = ENDING_MARGIN + LAST_WORDS_TIMEOUT


def _tool(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name(name)
    if not program.exists():
        pytest.skip(f"{name} is not installed: python3 scripts/bootstrap.py test-all")
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.slow
def test_the_dockerfile_is_in_order() -> None:
    """Hadolint finds nothing that is not accepted by name beside it."""
    done = _tool("hadolint", DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_the_connector_where_configurations_look_for_it() -> None:
    """The Dockerfile fills one folder, as root and in the last stage, and no other one is named.

    Neither by the pages, nor by what the image is tested with, nor by the examples that run in it.
    """
    *_, stage = re.split(r"^FROM ", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    filled = re.findall(r"^RUN .*\bheadrace connector fetch (\S+)", stage, re.MULTILINE)
    assert stage.index("connector fetch") < stage.index("\nUSER ")

    tested = ROOT / "tests" / "integration" / "deploy" / "test_image.py"
    pages = [ROOT / "docs" / name for name in ("deploy.md", "spark.md")]
    assert [_connectors(file) for file in [tested, *pages]] == [{*filled}] * 3
    assert _connectors(KUBERNETES) | _connectors(COMPOSE / "config/headrace.yaml") <= {*filled}


def _stages() -> dict[str, str]:
    """Return the Dockerfile by its stages' names; the last, built by default, has none."""
    text = DOCKERFILE.read_text(encoding="utf-8")
    found = re.split(r"^FROM (\S+)(?: AS (\S+))?$", text, flags=re.MULTILINE)
    return {name or "": body for name, body in zip(found[2::3], found[3::3], strict=True)}


def test_both_images_have_oci_labels() -> None:
    """The OCI's labels have the version of the code, the licence, and where it is from."""
    stages = _stages()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    common = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="(.*?)"', stages["common"]))
    assert common["licenses"] == project["license"]
    assert common["source"] == project["urls"]["Homepage"]
    assert common["documentation"].startswith(f"{common['source']}/blob/main/docs/")
    for name, suffix in (("slim", "-slim"), ("", "")):
        own = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="(.*?)"', stages[name]))
        assert own["version"] == f"${{VERSION}}{suffix}"
        assert own["revision"] == "${REVISION}"
        assert set(own) == {"description", "version", "revision"}
        assert re.findall(r"^ARG VERSION=(.*)$", stages[name], re.MULTILINE) == [VERSION]


def test_both_images_are_of_locked_packages_and_of_one_user() -> None:
    """Each from a lock file of its own, which the build may see; neither runs as root."""
    stages = _stages()
    seen = set((ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines())
    for stage, lock in (("slim-packages", "slim"), ("packages", "image"), ("tools", "build")):
        name = f"requirements/{lock}.lock"
        assert stages[stage].count(f"--requirement /src/{name}") == 1
        assert f"!{name}" in seen
        assert (ROOT / name).is_file()
    for name, packages in (("slim", "slim-packages"), ("", "packages")):
        copied = re.findall(r"^COPY --from=([\w-]+) ", stages[name], re.MULTILINE)
        assert copied == [packages, "package"]
        assert re.findall(r"^USER (.*)$", stages[name], re.MULTILINE) == ["10001:10001"]
        _, as_user = stages[name].split("\nUSER ")
        assert not re.findall(r"^(?:RUN|COPY) ", as_user, re.MULTILINE)


def test_the_slim_image_has_the_base_install_and_state_by_key() -> None:
    """The slim lock is the other's, in the same versions, without other extras' libraries."""
    locked = {
        name: dict(
            re.findall(
                r"^([\w.-]+)==(\S+)",
                (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8"),
                re.MULTILINE,
            )
        )
        for name in ("slim", "image", "test")
    }
    assert locked["slim"].items() <= locked["image"].items()
    more = set(locked["image"]) - set(locked["slim"])
    assert {"pyspark", "py4j", "pandas", "deltalake", "sqlalchemy", "opentelemetry-sdk"} <= more
    assert {"confluent-kafka", "kazoo", "pyarrow", "rocksdict"} <= set(locked["slim"])
    both = set(locked["slim"]) & set(locked["test"])
    assert {name: locked["slim"][name] for name in both} == {
        name: locked["test"][name] for name in both
    }


def _connectors(file: Path) -> set[str]:
    """Return the folders that a file gives as ``spark.connector``."""
    text = file.read_text(encoding="utf-8")
    return {*re.findall(r"""\bconnector"?: ["']?(/[^\s"'},]+)""", text)}


@pytest.mark.slow
@pytest.mark.parametrize("file", ["deploy/compose/compose.yaml", "tests/docker-compose.yml"])
def test_compose_files_fit_the_specification(file: str) -> None:
    """The schema of the compose specification accepts them."""
    done = _tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / file)
    assert done.returncode == 0, done.stdout


def test_the_paths_that_the_compose_file_mounts_exist() -> None:
    """Every mounted path beside the file exists, Prometheus' and Grafana's files among them."""
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounts = [m for service in services.values() for m in service.get("volumes", ())]
    sources = [m.split(":")[0] for m in mounts if m.startswith(".")]
    assert len(sources) == 6
    for source in sources:
        assert (COMPOSE / source).exists(), source


def test_the_container_stops_within_its_grace_period() -> None:
    """stop_grace_period is longer than a stop of this configuration, also one that hangs."""
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))["services"]
    config = load(COMPOSE / "config" / "headrace.yaml")
    allowed = int(services["headrace"]["stop_grace_period"].removesuffix("s"))
    assert allowed > config.shutdown_timeout + MARGIN
    assert services["headrace"]["read_only"] is True


def _objects() -> dict[str, Any]:
    return {o["kind"]: o for o in yaml.safe_load_all(KUBERNETES.read_text(encoding="utf-8"))}


def test_the_kubernetes_objects_belong_together() -> None:
    """Selectors find the pods' labels, volumes their sources, and the budget leaves one behind."""
    objects = _objects()
    labels = {"app.kubernetes.io/name": "headrace"}
    work = objects["StatefulSet"]["spec"]
    assert work["selector"]["matchLabels"] == labels
    assert work["template"]["metadata"]["labels"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    assert work["serviceName"] == objects["Service"]["metadata"]["name"]
    pod = work["template"]["spec"]
    names = {volume["name"] for volume in pod["volumes"]}
    names |= {claim["metadata"]["name"] for claim in work["volumeClaimTemplates"]}
    mounts = pod["containers"][0]["volumeMounts"]
    assert {mount["name"] for mount in mounts} == names
    assert not any("subPath" in mount for mount in mounts)
    assert objects["PodDisruptionBudget"]["spec"]["maxUnavailable"] < work["replicas"]


def test_only_prometheus_gets_through_to_the_pods(tmp_path: Path) -> None:
    """The policy is of all pods, and has one way in: a named namespace's, to the metrics' port."""
    objects = _objects()
    (tmp_path / "headrace.yaml").write_text(objects["ConfigMap"]["data"]["headrace.yaml"])
    pod = objects["StatefulSet"]["spec"]["template"]
    policy = objects["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress"]
    (way,) = policy["ingress"]
    (origin,) = way["from"]
    assert list(origin["namespaceSelector"]["matchLabels"]) == ["kubernetes.io/metadata.name"]
    (named,) = pod["spec"]["containers"][0]["ports"]
    assert way["ports"] == [{"protocol": "TCP", "port": named["name"]}]
    assert named["containerPort"] == load(tmp_path / "headrace.yaml").metrics.port


def test_the_pods_have_the_time_and_the_rights_that_they_need(tmp_path: Path) -> None:
    """The configuration in the map is in order, and fits grace period, probes and user."""
    objects = _objects()
    for name, text in objects["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    config = load(tmp_path / "headrace.yaml")
    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > config.shutdown_timeout + MARGIN
    container = pod["containers"][0]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"][:2] == ["headrace", "health"]
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 300
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    user = str(pod["securityContext"]["runAsUser"])
    assert f"USER {user}:{user}" in DOCKERFILE.read_text(encoding="utf-8")
