"""The Helm chart: its values as the program sees them, and what helm makes of them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.config import load
from headrace.signals import ENDING_MARGIN, LAST_WORDS_TIMEOUT
from headrace.version import VERSION
from tests.go_tools import go_tool

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "headrace"
EXAMPLE = CHART.parent / "example.yaml"
KEDA = CHART.parent / "keda.yaml"

SCHEMAS = ROOT / ".tools" / "schemas"

#: Seconds beside its own limit for the stop after which a process has ended itself.
MARGIN = ENDING_MARGIN + LAST_WORDS_TIMEOUT

#: helm built by itself takes an old one where no cluster says its own.
KUBERNETES = "--kube-version=1.33.0"

#: All that can be switched on.
EVERYTHING: dict[str, Any] = {
    "secrets": ["kafka", "database"],
    "env": [{"name": "ZONE", "value": "a"}],
    "imagePullSecrets": [{"name": "registry"}],
    "metrics": {"port": 9500, "serviceMonitor": {"enabled": True, "labels": {"release": "p"}}},
    "networkPolicy": {
        "ingress": [{"ports": [{"protocol": "TCP", "port": 9465}]}],
        "egress": [{"ports": [{"protocol": "UDP", "port": 53}]}],
    },
    "persistence": {"storageClass": "fast", "size": "10Gi", "whenScaled": "Delete"},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "data"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "high",
}


def _yaml(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [go_tool("helm"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _rendered(
    tmp_path: Path, values: Any = None, *more: Path, example: Path | None = EXAMPLE
) -> dict[str, Any]:
    """Return the objects of a release by their kinds."""
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values or {}), encoding="utf-8")
    options = [f"--values={each}" for each in (example, *more, file) if each is not None]
    done = _helm("template", "flights", CHART, KUBERNETES, *options)
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout) if each}


def _pod(objects: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = objects["StatefulSet"]["spec"]["template"]["spec"]
    return found


def test_the_chart_is_of_this_version() -> None:
    """The image installed by default is the one that this version is published as."""
    chart = _yaml(CHART / "Chart.yaml")
    assert chart["appVersion"] == VERSION
    assert _yaml(CHART / "values.yaml")["image"]["tag"] == ""


def test_the_schema_has_each_value_and_no_other() -> None:
    """Down to the last section, so that a value with a slip of the pen is refused."""

    def require_same(values: dict[str, Any], schema: dict[str, Any], at: str) -> None:
        known = set(schema["properties"]) - {"global"}
        assert known == set(values), at
        assert schema["additionalProperties"] is False, at
        for name, section in schema["properties"].items():
            if "properties" in section:
                require_same(values[name], section, f"{at}.{name}")

    require_same(
        _yaml(CHART / "values.yaml"),
        json.loads((CHART / "values.schema.json").read_text()),
        "values",
    )


def test_the_example_is_in_order(tmp_path: Path) -> None:
    """It loads, and what it names as code is among the files; the chart adds no channel to it."""
    values = _yaml(EXAMPLE)
    own = _yaml(CHART / "values.yaml")
    assert (own["config"], own["files"]) == ({}, {})
    (tmp_path / "headrace.yaml").write_text(yaml.safe_dump(values["config"]), encoding="utf-8")
    config = load(tmp_path / "headrace.yaml")
    ((_, channel),) = config.channels.items()
    module = channel.processor.code_paths[0].partition(":")[0]
    assert f"{module}.py" in values["files"]
    triggers = _yaml(KEDA)["keda"]["triggers"]
    assert triggers[0]["metadata"]["consumerGroup"] == channel.group
    assert triggers[0]["metadata"]["topic"] in channel.topics


@pytest.mark.slow
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["default", "everything"])
def test_helm_lint_finds_nothing(tmp_path: Path, values: dict[str, Any]) -> None:
    """Warnings count."""
    (tmp_path / "values.yaml").write_text(json.dumps(values), encoding="utf-8")
    options = [f"--values={each}" for each in (EXAMPLE, tmp_path / "values.yaml")]
    done = _helm("lint", "--strict", CHART, *options, "--quiet")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.27.0", "1.37.0"])
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["default", "everything"])
def test_the_objects_are_such_as_kubernetes_knows(
    tmp_path: Path, values: dict[str, Any], version: str
) -> None:
    """The objects pass its own schemas strictly, without unknown fields; others' are skipped."""
    if not SCHEMAS.exists():
        pytest.skip("no schemas of Kubernetes: python3 scripts/go_tools.py fetches them")
    assert _yaml(CHART / "Chart.yaml")["kubeVersion"] == ">=1.27.0-0"
    objects = _rendered(tmp_path, values, KEDA)
    manifest = yaml.safe_dump_all(objects.values())
    place = (
        "{{.NormalizedKubernetesVersion}}-local{{.StrictSuffix}}/{{.ResourceKind}}{{.KindSuffix}}"
    )
    options = ["-strict", "-summary", "-output=json", f"-kubernetes-version={version}"]
    options += ["-skip=ServiceMonitor,ScaledObject", f"-schema-location={SCHEMAS}/{place}.json"]
    done = subprocess.run(
        [go_tool("kubeconform"), *options],
        input=manifest,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)["summary"]
    assert found == {"valid": len(objects) - 2, "invalid": 0, "errors": 0, "skipped": 2}


@pytest.mark.slow
def test_the_objects_belong_together(tmp_path: Path) -> None:
    """Selectors find the pods' labels, volumes their sources, and ports their names."""
    objects = _rendered(tmp_path, EVERYTHING)
    work = objects["StatefulSet"]["spec"]
    labels = work["selector"]["matchLabels"]
    assert labels.items() <= work["template"]["metadata"]["labels"].items()
    for kind, path in {
        "Service": ("selector",),
        "PodDisruptionBudget": ("selector", "matchLabels"),
        "NetworkPolicy": ("podSelector", "matchLabels"),
        "ServiceMonitor": ("selector", "matchLabels"),
    }.items():
        found = objects[kind]["spec"]
        for step in path:
            found = found[step]
        assert found == labels, kind
    assert labels.items() <= objects["Service"]["metadata"]["labels"].items()
    assert work["serviceName"] == objects["Service"]["metadata"]["name"]
    pod = _pod(objects)
    names = {volume["name"] for volume in pod["volumes"]}
    names |= {claim["metadata"]["name"] for claim in work["volumeClaimTemplates"]}
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert set(mounts) == names
    assert not any("subPath" in mount for mount in mounts.values())
    assert mounts["secret-kafka"]["mountPath"] == "/run/secrets/kafka"
    assert pod["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]
    (config,) = [v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v]
    assert config == objects["ConfigMap"]["metadata"]["name"]
    (port,) = pod["containers"][0]["ports"]
    assert [e["port"] for e in objects["ServiceMonitor"]["spec"]["endpoints"]] == [port["name"]]
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]


@pytest.mark.slow
def test_the_configuration_reaches_the_pods_with_the_scraped_port(
    tmp_path: Path,
) -> None:
    """The configuration is as given, with the metrics' port of the values for all addresses."""
    objects = _rendered(tmp_path, EVERYTHING | {"config": {"metrics": {"port": 1}}})
    data = objects["ConfigMap"]["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    config = load(tmp_path / "headrace.yaml")
    assert (config.metrics.host, config.metrics.port) == ("0.0.0.0", 9500)
    assert data["reducers.py"] == _yaml(EXAMPLE)["files"]["reducers.py"]
    (port,) = _pod(objects)["containers"][0]["ports"]
    assert port["containerPort"] == 9500


@pytest.mark.slow
def test_only_the_given_channels_are_configured(tmp_path: Path) -> None:
    """Helm merges maps: a channel of the chart's own would run beside them."""
    flights = {**_yaml(EXAMPLE)["config"], "channels": {"flights": {"topics": ["flights"]}}}
    data = _rendered(tmp_path, {"config": flights}, example=None)["ConfigMap"]["data"]
    assert set(data) == {"headrace.yaml"}
    assert set(yaml.safe_load(data["headrace.yaml"])["channels"]) == {"flights"}


@pytest.mark.slow
def test_the_values_in_the_documentation_are_in_order(tmp_path: Path) -> None:
    """The configuration in them loads, with the one channel that they name."""
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (values,) = re.findall(r"```yaml\n(replicas: .*?)```", text, re.DOTALL)
    data = _rendered(tmp_path, yaml.safe_load(values), example=None)["ConfigMap"]["data"]
    for name, content in data.items():
        (tmp_path / name).write_text(content.replace("${file:", "$${file:"), encoding="utf-8")
    assert set(load(tmp_path / "headrace.yaml").channels) == {"flights"}
    assert "reducers.py" in data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "least"),
    [
        ({}, 30.0),
        ({"config": {"shutdown_timeout": "2m"}}, 120.0),
        ({"config": {"shutdown_timeout": "1500ms"}}, 1.5),
        ({"config": {"shutdown_timeout": "1.5h"}}, 5400.0),
        ({"existingConfigMap": "mine", "shutdownSeconds": 45}, 45.0),
    ],
)
def test_pods_have_the_time_that_a_stop_takes(
    tmp_path: Path, values: dict[str, Any], least: float
) -> None:
    """More than shutdown_timeout and what a stop that hangs takes to end itself."""
    grace = _pod(_rendered(tmp_path, values))["terminationGracePeriodSeconds"]
    assert least + MARGIN < grace <= least + MARGIN + 15


@pytest.mark.slow
def test_pods_have_no_more_rights_than_they_need(tmp_path: Path) -> None:
    """The user of the image, a root that cannot be written to, no capability and no token."""
    objects = _rendered(tmp_path)
    pod = _pod(objects)
    (container,) = pod["containers"]
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    health = ["headrace", "health", "-c", "/etc/headrace/headrace.yaml"]
    assert container["startupProbe"]["exec"]["command"] == health
    assert container["livenessProbe"]["exec"]["command"] == health
    assert container["readinessProbe"]["exec"]["command"] == [*health, "--ready"]
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] == 300
    (way,) = objects["NetworkPolicy"]["spec"]["ingress"]
    assert way["from"]
    assert way["ports"] == [{"protocol": "TCP", "port": "metrics"}]


@pytest.mark.slow
def test_objects_that_are_switched_off_are_not_rendered(tmp_path: Path) -> None:
    """Objects that take an operator are not rendered either, unless asked for."""
    objects = _rendered(tmp_path)
    assert not {"ServiceMonitor", "ScaledObject"} & set(objects)
    assert objects["StatefulSet"]["spec"]["replicas"] == 2
    values = {
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "persistence": {"enabled": False},
        "serviceAccount": {"create": False},
        "existingConfigMap": "mine",
    }
    objects = _rendered(tmp_path, values, example=None)
    assert set(objects) == {"Service", "StatefulSet"}
    pod = _pod(objects)
    assert {"name": "state", "emptyDir": {}} in pod["volumes"]
    assert {"name": "config", "configMap": {"name": "mine"}} in pod["volumes"]
    assert "volumeClaimTemplates" not in objects["StatefulSet"]["spec"]


@pytest.mark.slow
def test_the_number_of_pods_is_left_to_keda(tmp_path: Path) -> None:
    """KEDA scales this release's pods by the example's triggers; the chart gives no number."""
    objects = _rendered(tmp_path, None, KEDA)
    scaled, work = objects["ScaledObject"]["spec"], objects["StatefulSet"]
    assert scaled["scaleTargetRef"] == {
        "apiVersion": work["apiVersion"],
        "kind": work["kind"],
        "name": work["metadata"]["name"],
    }
    assert "replicas" not in work["spec"]
    assert [each["type"] for each in scaled["triggers"]] == ["kafka", "prometheus"]
    assert all(
        isinstance(value, str) for each in scaled["triggers"] for value in each["metadata"].values()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"replica": 3}, "replica"),
        ({"metrics": {"port": "9464"}}, "metrics"),
        ({"config": {"shutdown_timeout": "soon"}}, "is not a duration such as 30s"),
        ({"keda": {"enabled": True}}, "keda.triggers has none"),
        ({"files": {"headrace.yaml": "a: 1"}}, "headrace.yaml"),
        ({"secrets": ["Kafka"]}, "secrets"),
        ({"config": {"channels": None}}, "config.channels is missing"),
    ],
)
def test_values_that_cannot_be_are_refused(
    tmp_path: Path, values: dict[str, Any], told: str
) -> None:
    """Before anything is installed, by name."""
    (tmp_path / "values.yaml").write_text(json.dumps(values), encoding="utf-8")
    options = [f"--values={each}" for each in (EXAMPLE, tmp_path / "values.yaml")]
    done = _helm("template", "flights", CHART, KUBERNETES, *options)
    assert done.returncode != 0
    assert told in done.stderr
