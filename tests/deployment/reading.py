"""What the files in `deploy/` would start: commands, environments and health checks, as values."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
INSTALLED = "/opt/shop/venv/bin/redrive"


@dataclass(frozen=True)
class Page:
    """A health check that is a page: how Kubernetes asks."""

    port: int
    path: str


@dataclass(frozen=True)
class Start:
    """Something that is started: `redrive` with these words and this environment."""

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    health: tuple[tuple[str, ...] | Page, ...] = ()  # commands of `redrive`, or pages; none: it ends by itself

    @property
    def lasts(self) -> bool:
        return bool(self.health)


# The Dockerfile -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    stage: int
    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        """The exec form, which no shell stands between."""
        found: list[str] = json.loads(self.rest)
        return found


def read_dockerfile(text: str) -> list[Instruction]:
    found, stage = [], -1
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(" ")
        stage += name == "FROM"
        found.append(Instruction(stage, name, rest.strip()))
    return found


def last(instructions: Sequence[Instruction], name: str) -> Instruction:
    return [one for one in instructions if one.name == name][-1]


def healthcheck(instructions: Sequence[Instruction]) -> tuple[str, ...]:
    return tuple(json.loads(last(instructions, "HEALTHCHECK").rest.partition("CMD ")[2]))


def _redrive(words: Sequence[str], entry: Sequence[str]) -> tuple[str, ...]:
    """What is left for `redrive` of a container's command."""
    assert list(entry) == ["tini", "--", "redrive"]
    return tuple(words)


# compose.yaml -------------------------------------------------------------------------------------


def read_variables(text: str) -> dict[str, str]:
    """Of an `.env`, or an EnvironmentFile."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)  # type: ignore[misc]


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """`${NAME}` and `${NAME:?why not}`, of which the second has to be there."""

    def value(found: re.Match[str]) -> str:
        if found[2] is not None and not variables.get(found[1]):
            raise KeyError(found[2])
        return variables.get(found[1], "")

    return re.sub(r"\$\{(\w+)(?::\?([^}]*))?\}", value, text)


def read_compose(file: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(interpolate(file.read_text(), variables))["services"]
    return services


def compose_starts(file: Path, dockerfile: Path, variables: Mapping[str, str]) -> list[Start]:
    """Those of its services that are made from our image, in an order in which they can be started."""
    services = read_compose(file, variables)
    image = read_dockerfile(dockerfile.read_text())
    entry = last(image, "ENTRYPOINT").words
    made = []
    for name, service in services.items():
        if "build" not in service:
            continue
        words = _redrive(service.get("command") or last(image, "CMD").words, entry)
        check = service.get("healthcheck", {})
        told = tuple(check["test"][1:]) if "test" in check else healthcheck(image)
        health = () if check.get("disable") else (_after_redrive(told),)
        made.append(Start(name, words, service["environment"], health))
    return sorted(made, key=lambda start: start.lasts)


def _after_redrive(words: Sequence[str]) -> tuple[str, ...]:
    assert words[0] in ("redrive", INSTALLED)
    return tuple(words[1:])


# Kubernetes ---------------------------------------------------------------------------------------


def read_manifests(folder: Path) -> list[dict[str, Any]]:
    """Those that the kustomization names, and the example of the secret."""
    named = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    files = [folder / name for name in [*named, "secret.example.yaml"]]
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def of_kind(manifests: Sequence[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [one for one in manifests if one["kind"] in kinds]


def kubernetes_starts(folder: Path, dockerfile: Path) -> list[Start]:
    manifests = read_manifests(folder)
    entry = last(read_dockerfile(dockerfile.read_text()), "ENTRYPOINT").words
    made = [
        Start(
            container["name"],
            _redrive(container["args"], entry),
            _environment(container, manifests),
            _probes(container),
        )
        for one in of_kind(manifests, "Job", "Deployment")
        for container in _containers(one)
    ]
    return sorted(made, key=lambda start: start.lasts)


def _containers(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    spec = manifest["spec"]["template"]["spec"]
    yield from [*spec.get("initContainers", []), *spec["containers"]]


def _environment(container: dict[str, Any], manifests: Sequence[dict[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        [(way, reference)] = source.items()
        kind, key = {"configMapRef": ("ConfigMap", "data"), "secretRef": ("Secret", "stringData")}[way]
        [one] = [one for one in of_kind(manifests, kind) if one["metadata"]["name"] == reference["name"]]
        found |= one[key]
    return found


def _probes(container: dict[str, Any]) -> tuple[Page, ...]:
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    asked = [
        container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe") if name in container
    ]
    return tuple(Page(ports[page["port"]], page["path"]) for page in asked)


# systemd ------------------------------------------------------------------------------------------


def read_unit(text: str) -> dict[str, list[str]]:
    """All settings, each with its values in their order; sections do not share names here."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def systemd_starts(folder: Path, instance: str = "1") -> list[Start]:
    """Every command of every unit; a template as one instance of it."""
    variables = read_variables((folder / "shop.env.example").read_text())
    made = []
    for file in sorted(folder.glob("*.service")):
        unit = read_unit(file.read_text().replace("%i", instance))
        health = tuple(_after_redrive(shlex.split(one)) for one in unit.get("ExecStartPost", []))
        for number, command in enumerate(unit["ExecStart"]):
            words = _after_redrive(shlex.split(command))
            made.append(Start(f"{file.stem}-{number}", words, variables, health))
    return sorted(made, key=lambda start: start.lasts)
