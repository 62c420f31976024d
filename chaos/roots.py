"""Where the versions of RabbitMQ are that the system's packages do not have."""

from __future__ import annotations

import sys
from pathlib import Path

SYSTEMS_OWN = "3.10"
_ROOTS = Path(__file__).parent.parent / ".cache"


def root_of(version: str) -> Path | None:
    if version == SYSTEMS_OWN:
        return None
    root = _ROOTS / f"rabbitmq-{version}"
    if not root.exists():
        sys.exit(f"RabbitMQ {version} is not there: tools/make_rabbitmq_root.sh makes it, as make test-matrix does")
    return root
