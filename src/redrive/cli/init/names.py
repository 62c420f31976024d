"""Which names a new service may have, and what was probably meant by those it may not.

A name is the project's (`order-desk`); with underscores it is its package's (`order_desk`), which must hide no module
that is imported by the same name.
"""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata
from dataclasses import dataclass

from redrive.errors import ConfigurationError

LONGEST = 40  # it stands in names of queues, images and units
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")

# What Redrive, its extras and a service's tests import.
THEIRS = frozenset({
    "aiosqlite", "alembic", "celery", "click", "fastapi", "h11", "jinja2", "jwt", "msgspec", "multipart", "mypy",
    "opentelemetry", "prometheus_client", "psycopg", "pytest", "pytest_asyncio", "python_multipart", "redrive", "rich",
    "ruff", "sqlalchemy", "uvicorn", "uvloop", "yaml",
})  # fmt: skip
# Folders that a project has beside its package.
_FOLDERS = frozenset({"build", "dist", "docs", "site", "src", "test", "tests", "venv"})


@dataclass(frozen=True, slots=True)
class ServiceName:
    project: str

    def __post_init__(self) -> None:
        if why := _objection(self.project):
            meant = _valid_name_like(self.project)
            hint = f", did you mean {meant}?" if meant is not None else ""
            raise ConfigurationError(f"{self.project!r} is no name for a service: {why}{hint}")

    @property
    def package(self) -> str:
        return self.project.replace("-", "_")

    @property
    def prefix(self) -> str:
        """Of its environment variables."""
        return self.package.upper()


def _objection(name: str) -> str | None:
    package = name.replace("-", "_")
    if not _NAME.fullmatch(name):
        return "want small letters, digits, and single dashes between them, a letter first"
    if len(name) > LONGEST:
        return f"it has {len(name)} letters, want {LONGEST} at most"
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        return f"{package} is a word of Python's own"
    if package in sys.stdlib_module_names:
        return f"{package} is a module of Python's own, which it would hide"
    if package in THEIRS:
        return f"{package} is a package that services import, which it would hide"
    if package in _FOLDERS:
        return f"{package} is what another folder of a project is called"
    return None


def _valid_name_like(name: str) -> str | None:
    """A name near to it that will do."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", plain).lower()
    words = re.findall(r"[a-z0-9]+", spaced)
    near = "-".join(words).lstrip("0123456789-")[:LONGEST].rstrip("-")
    return next((one for one in (near, f"{near}-service") if one and _objection(one) is None), None)
