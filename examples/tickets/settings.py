"""What can be set from outside: HELPDESK_URL. Redrive reads REDRIVE_BROKER and REDRIVE_DATABASE itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    helpdesk: str = "http://127.0.0.1:8081"

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> Settings:
        return cls(helpdesk=variables.get("HELPDESK_URL") or cls().helpdesk)
