"""Ask whether a version in constraints.txt has a known vulnerability: `python tools/audit_dependencies.py`.

pip-audit asks a service for each version. Where that cannot be reached, or does not answer in time, or knows nothing of
what it is asked about, nothing was found out, and one line says so: a check that needs the network must not fail where
there is none. Exit code 1 is for what was found, and for nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
WITHIN = 60  # seconds for everything
EACH = 5  # seconds for one answer


@dataclass(frozen=True, slots=True)
class Verdict:
    lines: tuple[str, ...]
    failed: bool = False


def judge(said: str, complained: str) -> Verdict:
    """What the output of pip-audit means."""
    try:
        dependencies: list[dict[str, Any]] = json.loads(said)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return left_out(_last_line(complained) or "pip-audit said nothing")
    asked = [one for one in dependencies if "skip_reason" not in one]
    if not asked:
        return left_out(f"the service knows none of {len(dependencies)} packages, so it is not the one it should be")
    found = [f"  {_name(one)}: {_told(weakness)}" for one in asked for weakness in one.get("vulns", [])]
    if found:
        return Verdict((f"audit: {len(found)} known in what constraints.txt pins:", *found), failed=True)
    unknown = len(dependencies) - len(asked)
    more = f"; of {unknown} more nothing is known" if unknown else ""
    return Verdict((f"audit: no known vulnerability in {len(asked)} packages{more}",))


def left_out(why: str) -> Verdict:
    return Verdict((f"audit: left out, since nobody could be asked: {why}",))


def _name(one: dict[str, Any]) -> str:
    return f"{one.get('name')} {one.get('version')}"


def _told(weakness: dict[str, Any]) -> str:
    versions = ", ".join(weakness.get("fix_versions", []))
    return f"{weakness.get('id')}, " + (f"mended in {versions}" if versions else "not mended yet")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""


def audit(within: float = WITHIN) -> Verdict:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip"]
    command += ["--progress-spinner", "off", "--format", "json", "--timeout", str(EACH)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=within, check=False)
    except subprocess.TimeoutExpired:
        return left_out(f"no answer within {within:g} s")
    return judge(ended.stdout, ended.stderr)


if __name__ == "__main__":
    verdict = audit()
    print(*verdict.lines, sep="\n")
    sys.exit(1 if verdict.failed else 0)
