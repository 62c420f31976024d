"""The files in `deploy/`, by reading them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployment.reading import (
    DEPLOY,
    INSTALLED,
    ROOT,
    healthcheck,
    interpolate,
    kubernetes_starts,
    last,
    of_kind,
    read_compose,
    read_dockerfile,
    read_manifests,
    read_unit,
    read_variables,
)
from redrive.cli.init.names import ServiceName
from redrive.cli.init.plan import make_plan
from redrive.recovery.durations import duration

DOCKERFILE = read_dockerfile((DEPLOY / "Dockerfile").read_text())
DEVELOPMENT = read_variables((DEPLOY / ".env.example").read_text())
COMPOSE = read_compose(DEPLOY / "compose.yaml", DEVELOPMENT)
MANIFESTS = read_manifests(DEPLOY / "kubernetes")
UNITS = {file.name: read_unit(file.read_text()) for file in sorted((DEPLOY / "systemd").glob("*.service"))}


def drain_limit(words: list[str] | tuple[str, ...]) -> float:
    """How long a command may take to end, by its own account."""
    return duration(words[words.index("--drain") + 1]).total_seconds() if "--drain" in words else 0


# The image ----------------------------------------------------------------------------------------


def test_the_builder_gets_all_that_git_knows_and_no_secrets() -> None:
    copied = [one.rest.split()[:-1] for one in DOCKERFILE if one.name == "COPY" and "--from" not in one.rest]
    assert copied == [["."]]
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    left_out = [line.removeprefix("**/") for line in lines if line and line[0] != "#"]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    parts = {part for name in tracked for part in Path(name).parts}
    assert [(part, one) for part in parts for one in left_out if fnmatch(part, one)] == []
    assert {".env", "secret.yaml", ".venv", ".redrive"} <= set(left_out)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {".env", "deploy/kubernetes/secret.yaml"} <= set(ignored)


def test_nothing_of_the_builder_stays_but_what_was_installed() -> None:
    final = [one for one in DOCKERFILE if one.stage == DOCKERFILE[-1].stage]
    assert [one.rest for one in DOCKERFILE if one.name == "FROM"] == ["python:3.11 AS build", "python:3.11-slim"]
    assert [one.rest for one in final if one.name == "COPY"] == ["--from=build /venv /venv"]


def test_the_image_runs_as_nobody_in_particular_and_signals_reach_it() -> None:
    user, entry = last(DOCKERFILE, "USER"), last(DOCKERFILE, "ENTRYPOINT")
    assert user.rest.isdigit()
    assert int(user.rest) > 0
    assert DOCKERFILE.index(user) < DOCKERFILE.index(entry)
    assert entry.words == ["tini", "--", "redrive"]
    assert "tini" in next(one.rest for one in DOCKERFILE if one.rest.startswith("apt-get"))
    assert healthcheck(DOCKERFILE)[:2] == ("redrive", "health")


def test_no_file_holds_a_secret() -> None:
    said = re.compile(r"://\w+:([^@\s\"']+)@|(?:PASSWORD|PASS|SECRET): (\S+)")
    for file in DEPLOY.rglob("*"):
        if file.is_file():
            for match in said.finditer(file.read_text()):
                assert (match[1] or match[2]) in ("CHANGE-ME",) or (match[1] or match[2]).startswith("${"), file


# Compose ------------------------------------------------------------------------------------------


def test_without_passwords_nothing_starts() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    for name in DEVELOPMENT:
        with pytest.raises(KeyError, match=r"copy \.env\.example to \.env"):
            interpolate(text, DEVELOPMENT | {name: ""})


def test_everything_is_there_and_waits_for_what_it_needs() -> None:
    assert COMPOSE.keys() == {
        "admin", "grafana", "postgres", "prometheus", "rabbitmq", "relay", "tables", "topology", "worker",
    }  # fmt: skip
    for service in COMPOSE.values():
        for needed, how in service.get("depends_on", {}).items():
            ends = COMPOSE[needed].get("healthcheck", {}).get("disable", False)
            checked = "healthcheck" in COMPOSE[needed] or "build" in COMPOSE[needed]
            assert how["condition"] == ("service_completed_successfully" if ends else "service_healthy")
            assert checked


def test_images_are_named_with_their_versions() -> None:
    images = {name: service["image"] for name, service in COMPOSE.items() if "build" not in service}
    assert images["rabbitmq"] == "rabbitmq:4-management"
    assert images["postgres"] == "postgres:17"
    assert all(re.fullmatch(r"[a-z/]+:v?\d[\w.-]*", image) for image in images.values())


def test_what_is_mounted_is_there() -> None:
    declared = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["volumes"]
    sources = [volume.split(":")[0] for service in COMPOSE.values() for volume in service.get("volumes", [])]
    assert [one for one in sources if one.startswith(".") and not (DEPLOY / one).exists()] == []
    assert {one for one in sources if not one.startswith(".")} == set(declared)


def test_ports_are_open_on_this_machine_alone() -> None:
    ports = [port for service in COMPOSE.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_waits_longer_than_a_worker_drains() -> None:
    for service in COMPOSE.values():
        if "build" in service:
            assert duration(service["stop_grace_period"]).total_seconds() > drain_limit(service["command"])


# Watching -----------------------------------------------------------------------------------------


def mounted(service: str, path: str) -> Path:
    """The file of ours that a container sees under that path."""
    for volume in COMPOSE[service]["volumes"]:
        source, target, *_ = volume.split(":")
        if source.startswith(".") and (path == target or path.startswith(f"{target}/")):
            return (DEPLOY / source / path[len(target) :].lstrip("/")).resolve()
    raise AssertionError(f"{service} does not see {path}")


def test_prometheus_asks_those_who_answer_and_knows_the_packages_own_alerts() -> None:
    config = yaml.safe_load(mounted("prometheus", "/etc/prometheus/prometheus.yml").read_text())
    asked = {
        (name, found["port"])
        for job in config["scrape_configs"]
        for found in job["dns_sd_configs"]
        for name in found["names"]
    }
    told = {
        (name, int(service["command"][service["command"].index("--health-port") + 1]))
        for name, service in COMPOSE.items()
        if "--health-port" in service.get("command", [])
    }
    assert asked == told == {("worker", 9000), ("relay", 9000)}
    rules = [mounted("prometheus", path) for path in config["rule_files"]]
    assert rules == [ROOT / "src/redrive/integrations/dashboards/alerts.yml"]


def test_grafana_finds_prometheus_and_the_packages_own_dashboard() -> None:
    provisioning = mounted("grafana", "/etc/grafana/provisioning")
    [source] = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    [provider] = yaml.safe_load((provisioning / "dashboards/redrive.yaml").read_text())["providers"]
    folder = mounted("grafana", provider["options"]["path"])
    assert [json.loads(file.read_text())["title"] for file in folder.glob("*.json")] == ["Redrive"]


# Kubernetes ---------------------------------------------------------------------------------------

DEPLOYMENTS = {one["metadata"]["name"]: one["spec"] for one in of_kind(MANIFESTS, "Deployment")}


def test_there_is_a_manifest_for_each_part() -> None:
    kinds = sorted((one["kind"], one["metadata"]["name"]) for one in MANIFESTS)
    assert ("Job", "shop-setup") in kinds
    assert DEPLOYMENTS.keys() == {"shop-worker", "shop-relay", "shop-admin"}
    assert {name for kind, name in kinds if kind == "PodDisruptionBudget"} == {"shop-worker", "shop-relay"}


def test_selectors_find_what_they_are_for() -> None:
    labels = [spec["template"]["metadata"]["labels"] for spec in DEPLOYMENTS.values()]
    for one in MANIFESTS:
        selector = one["spec"].get("selector") if "spec" in one else None
        if selector:
            wanted = selector.get("matchLabels", selector)
            assert sum(wanted.items() <= label.items() for label in labels) == 1


def test_a_pod_is_given_longer_than_it_drains() -> None:
    for spec in DEPLOYMENTS.values():
        pod = spec["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > drain_limit(pod["containers"][0]["args"])


def test_prometheus_is_told_of_ports_that_have_metrics() -> None:
    for name in ("shop-worker", "shop-relay"):
        template = DEPLOYMENTS[name]["template"]
        [container] = template["spec"]["containers"]
        notes = template["metadata"]["annotations"]
        assert notes["prometheus.io/scrape"] == "true"
        assert notes["prometheus.io/path"] == "/metrics"
        assert notes["prometheus.io/port"] == container["args"][container["args"].index("--health-port") + 1]


def test_no_container_may_more_than_it_must() -> None:
    for one in of_kind(MANIFESTS, "Deployment", "Job"):
        pod = one["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert str(pod["securityContext"]["runAsUser"]) == last(DOCKERFILE, "USER").rest
        assert not pod["automountServiceAccountToken"]
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            may = container["securityContext"]
            assert (may["allowPrivilegeEscalation"], may["readOnlyRootFilesystem"]) == (False, True)
            assert may["capabilities"] == {"drop": ["ALL"]}


def test_the_example_of_the_secret_is_never_applied_with_the_rest() -> None:
    kustomization = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    files = {file.name for file in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files - {"secret.example.yaml"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kustomize_takes_it_and_names_the_image() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    images = {
        container["image"]
        for one in of_kind(list(yaml.safe_load_all(done.stdout)), "Deployment", "Job")
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"registry.example.org/shop:0.1.0"}


# systemd ------------------------------------------------------------------------------------------


def test_units_are_the_three_parts_and_their_set_up() -> None:
    assert UNITS.keys() == {"shop-admin.service", "shop-relay.service", "shop-setup.service", "shop-worker@.service"}
    for name, unit in UNITS.items():
        assert unit["Type"] == (["oneshot"] if "setup" in name else ["exec"])
        assert unit["EnvironmentFile"] == ["/etc/shop/shop.env"]
        assert unit["User"] == ["shop"]
        if "setup" not in name:
            assert "shop-setup.service" in unit["After"][0].split()
            assert "shop-setup.service" in unit["Wants"][0].split()
            assert "Requires" not in unit  # or a restart of the set-up would be one of everything at once


def test_a_unit_is_given_longer_than_it_drains() -> None:
    for name, unit in UNITS.items():
        if "setup" not in name:
            assert unit["KillSignal"] == ["SIGTERM"]
            assert float(unit["TimeoutStopSec"][0]) > drain_limit(unit["ExecStart"][0].split())
            [check] = unit["ExecStartPost"]
            patience = duration(check.split()[check.split().index("--within") + 1]).total_seconds()
            assert float(unit["TimeoutStartSec"][0]) > patience


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    program = shutil.which("true") or "/bin/true"
    for file in (DEPLOY / "systemd").glob("*.service"):
        (tmp_path / file.name).write_text(file.read_text().replace(INSTALLED, program))
    files = [str(file) for file in tmp_path.glob("*.service")]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if "shop-" in line] == []
    assert done.returncode == 0, done.stderr


# All of them --------------------------------------------------------------------------------------


def test_the_environment_is_the_same_wherever_it_runs() -> None:
    written = {
        name for start in kubernetes_starts(DEPLOY / "kubernetes", DEPLOY / "Dockerfile") for name in start.environment
    }
    assert written == set(read_variables((DEPLOY / "systemd/shop.env.example").read_text()))
    assert set(COMPOSE["worker"]["environment"]) == {name for name in written if name.startswith("REDRIVE_")}


def test_the_builder_of_a_service_of_ones_own_gets_what_its_image_is_made_of() -> None:
    made = {str(file.path): file.text for file in make_plan(ServiceName("order-desk"), "1.0")}
    copies = [one.rest.split() for one in read_dockerfile(made["Dockerfile"]) if one.name == "COPY"]
    sources = {source for words in copies if not words[0].startswith("--from") for source in words[:-1]}
    everything, *exceptions = [line for line in made[".dockerignore"].splitlines() if line[0] != "#"]
    assert everything == "*"
    assert sources == {line[1:] for line in exceptions if line[0] == "!"}
    assert all(any(path == source or path.startswith(f"{source}/") for path in made) for source in sources)


def test_a_service_of_ones_own_gets_the_same_image_and_the_same_commands() -> None:
    """What `redrive init` writes and what is here must not drift apart."""
    made = {str(file.path): file.text for file in make_plan(ServiceName("shop"), "1.0")}
    theirs = read_dockerfile(made["Dockerfile"])
    ours_finally, theirs_finally = (
        [(one.name, one.rest) for one in image if one.stage == 1] for image in (DOCKERFILE, theirs)
    )
    assert theirs_finally == ours_finally
    services: dict[str, Any] = yaml.safe_load(interpolate(made["compose.yaml"], DEVELOPMENT))["services"]
    for name, service in services.items():
        command = service.get("command", last(theirs, "CMD").words if "build" in service else None)
        assert command == COMPOSE[name].get("command")
        assert service.get("environment") == COMPOSE[name].get("environment")
        assert service["image"] == COMPOSE[name]["image"]
