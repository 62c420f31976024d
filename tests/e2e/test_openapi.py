"""The API's document, and whether the API keeps to it, whatever it is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from admin_api import admin_context, bearing
from dead_lettering import prepare
from e2e.serving import ROOT, Server, serving
from redrive.admin.api.application import make_api
from redrive.inspection import connect

DOCUMENT = ROOT / "docs" / "openapi.json"


def described(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = make_api(admin_context(None, folder)).openapi()
    document["info"]["version"] = "0"  # of Redrive: it changes more often than the API
    return document


def test_the_committed_document_is_the_one_that_is_served(tmp_path: Path) -> None:
    """A change of the API is a change of docs/openapi.json, which somebody reads: `make openapi` writes it."""
    assert json.loads(DOCUMENT.read_text()) == described(tmp_path)


def test_it_is_openapi_3_1_and_every_endpoint_of_the_specification_is_in_it(tmp_path: Path) -> None:
    document = described(tmp_path)
    assert document["openapi"].startswith("3.1")
    found = {f"{method.upper()} {path}" for path, ways in document["paths"].items() for method in ways}
    assert found == {
        "GET /admin/dlq/queues",
        "GET /admin/dlq/queues/{queue}",
        "GET /admin/dlq/queues/{queue}/messages",
        "GET /admin/dlq/queues/{queue}/messages/{id}",
        "POST /admin/dlq/queues/{queue}/messages/{id}/edit-and-re-drive",
        "GET /admin/dlq/queues/{queue}/groups",
        "POST /admin/dlq/queues/{queue}/messages",
        "POST /admin/dlq/queues/{queue}/messages/{id}",
        "POST /admin/dlq/queues/{queue}/groups",
        "POST /admin/dlq/queues/{queue}/re-drive/plan",
        "POST /admin/dlq/queues/{queue}/re-drive",
        "POST /admin/dlq/queues/{queue}/discard",
        "POST /admin/dlq/queues/{queue}/move",
        "GET /admin/dlq/queues/{queue}/export",
        "POST /admin/dlq/queues/{queue}/import",
        "GET /admin/operations",
        "GET /admin/operations/{id}",
        "PATCH /admin/operations/{id}",
        "GET /admin/operations/{id}/items",
        "GET /admin/operations/{id}/events",
        "POST /admin/operations/{id}/cancel",
        "POST /admin/operations/{id}/pause",
        "POST /admin/operations/{id}/resume",
        "GET /admin/outbox",
        "POST /admin/outbox/{id}/retry",
        "POST /admin/outbox/{id}/discard",
        "GET /admin/topology",
        "GET /admin/doctor",
        "GET /admin/audit",
        "GET /admin/me",
    }


# What is asked for and is not there is a fair answer, and so is a queue whose name ends like another path: the checks
# that take every answer but 2xx, and every path, for a mistake are left out.
CHECKS = (
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
)


# Whatever it is sent ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("openapi")
    with serving(folder, None, REDRIVE_ADMIN_EDITING="1") as server:

        async def fill() -> None:
            async with connect(None, data=folder / ".redrive") as connection:
                await prepare(connection, 30)

        asyncio.run(fill())
        yield server


@schemathesis.serializer("application/x-ndjson")
def _as_lines(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


SCHEMA = schemathesis.openapi.from_dict(json.loads(DOCUMENT.read_text()))


@SCHEMA.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_no_request_is_answered_with_what_the_document_does_not_say(case: Any, server: Server) -> None:
    response = case.call(base_url=server.address, headers=bearing("admin"), timeout=60)
    case.validate_response(response, checks=CHECKS)
