"""What the operators' commands print."""

import json
from datetime import UTC, datetime

import pytest

from redrive.cli.output import Progress, as_json
from redrive.operations.operation import Counts, Operation, OperationKind, OperationRequest, OperationState, Selection


def test_json_holds_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    """Found by fuzzing: JSON itself escapes no more than what is below a space."""
    told = {"type": "\u202ereversed", "error": "\x9b2J", "host": "\u200b\x7f", "name": "zoë"}

    as_json(told)

    printed = capsys.readouterr().out
    assert printed.rstrip("\n").isprintable()
    assert json.loads(printed) == told
    assert "zoë" in printed


def test_what_was_no_text_in_a_message_is_an_escape_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Found by fuzzing: a name that is not UTF-8 ended `redrive dlq peek --json` with a traceback."""
    as_json([{"exchange": b"\xff".decode("utf-8", "surrogateescape"), "\udcfe": 1}])

    assert json.loads(capsys.readouterr().out) == [{"exchange": "\\udcff", "\\udcfe": 1}]


def test_the_progress_on_a_group_without_a_plan_has_no_total(capsys: pytest.CaptureFixture[str]) -> None:
    order = OperationRequest(OperationKind.REDRIVE, "orders.dlq", Selection(group="3fa9"))

    Progress().show(
        Operation("op_01j8xyz012", order, datetime.now(UTC), OperationState.RUNNING, Counts(moved=5), scope=2000), 0
    )

    assert capsys.readouterr().err.split() == ["op_01j8xyz0…", "5"]
