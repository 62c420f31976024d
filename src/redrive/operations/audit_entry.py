"""An entry of the audit: who did what to which queue, or was not allowed to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class AuditEntry:
    at: datetime
    by: str
    action: str  # "re-drive", "discard", "peek", "reveal", "export" and the like
    queue: str
    allowed: bool
    operation: str = ""  # its id, if it is one
    filter: str = ""  # which messages were meant
    counts: Mapping[str, int | None] = field(default_factory=dict)
    reason: str = ""  # what the person gave as one
    detail: str = ""
