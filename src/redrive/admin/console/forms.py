"""What somebody typed into a form, what it means, and what is wrong with it.

The rules are those of the API (`redrive.admin.api.request_schemas`): a form makes what a program would have sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from redrive.errors import ConfigurationError, SearchError

MOST_OF_STRANGERS = 64 * 1024  # bytes of a form that anybody may send
_MOST_BYTES = 8 * 1024 * 1024
_MOST_FIELDS = 2000

Typed = ImmutableMultiDict[str, str]


async def form_of(request: Request, most: int = _MOST_BYTES) -> Typed:
    """Fields of a form that was posted, as browsers send it when no file is in it."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise ConfigurationError(f"this form is larger than {most // 1024} KB: use the command line for that")
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise ConfigurationError(
            "this is not what the form sends: open the page again, and send it from there"
        ) from None
    return ImmutableMultiDict(pairs)


@dataclass(slots=True)
class Mistakes:
    """By field; those of none stand above the form."""

    fields: dict[str, str] = field(default_factory=dict)
    general: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.fields or self.general)

    def of(self, name: str) -> str:
        return self.fields.get(name, "")

    def add(self, error: Exception, names: Mapping[str, str] = {}) -> None:
        """`names`: where the form calls something other than the API does."""
        match error:
            case ValidationError():
                for found in error.errors(include_url=False, include_context=False, include_input=False):
                    name = str(found["loc"][0]) if found["loc"] else ""
                    self._put(names.get(name, name), _plainly(found["msg"]))
            case SearchError():
                self._put("q", str(error))
            case ConfigurationError():
                self._put(names.get(error.option, error.option), str(error))
            case _:
                self._put("", str(error))

    def _put(self, name: str, said: str) -> None:
        if name:
            self.fields.setdefault(name, said)
        else:
            self.general.append(said)


def _plainly(said: str) -> str:
    said = said.partition(", unable to")[0].replace("Value error, ", "")
    return said.replace("Input should be", "want").replace("a valid integer", "a whole number").replace("a valid", "a")


def text_of(typed: Mapping[str, str], name: str, otherwise: str = "") -> str:
    """Without what comes along when somebody pastes."""
    return typed.get(name, otherwise).strip()


def or_none(text: str) -> Any:
    return text or None
