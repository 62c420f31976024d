"""Finds the peers and the scenarios. Adding one is adding a file; no list names them."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from dataclasses import dataclass, field
from typing import Any

from bench import peers, scenarios
from bench.contract import Contender, Scenario, System


@dataclass
class Catalogue:
    scenarios: dict[str, Scenario[Any]] = field(default_factory=dict)
    systems: dict[str, System] = field(default_factory=dict)  # by the name of the peer's file
    skipped: dict[str, str] = field(default_factory=dict)  # who cannot take part, and why

    def contenders(self, scenario: str) -> list[tuple[str, Contender]]:
        """All of a scenario that can run here, with the file each comes from, in the order of the files."""
        entries = ((file, contender) for file, system in self.systems.items() for contender in system.contenders)
        return [entry for entry in entries if entry[1].scenario == scenario and _has_loop(entry[1])]


def find_all(suite: str = "clients") -> Catalogue:
    """The scenarios of a suite, and who takes part in them."""
    asked = {name: scenario for name, scenario in find_scenarios().items() if scenario.suite == suite}
    catalogue = Catalogue(scenarios=asked)
    for file in _modules(peers):
        try:
            system = find_system(file)
        except ModuleNotFoundError as error:
            catalogue.skipped[file] = f"{error.name} is not installed"
            continue
        if not any(contender.scenario in asked for contender in system.contenders):
            continue
        if (why := system.obstacle()) is not None:
            catalogue.skipped[system.name] = why
        else:
            catalogue.systems[file] = system
    return catalogue


def find_scenarios() -> dict[str, Scenario[Any]]:
    found = [importlib.import_module(f"{scenarios.__name__}.{name}").scenario for name in _modules(scenarios)]
    return {scenario.name: scenario for scenario in sorted(found, key=lambda scenario: scenario.place)}


def find_system(file: str) -> System:
    system: System = importlib.import_module(f"{peers.__name__}.{file}").system
    return system


def _has_loop(contender: Contender) -> bool:
    return contender.loop == "asyncio" or importlib.util.find_spec(contender.loop) is not None


def _modules(package: Any) -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))
