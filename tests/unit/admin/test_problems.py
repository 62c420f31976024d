"""Problems have names that are listed, and say which error they come of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.admin.api import problems
from redrive.admin.api.problem_types import KINDS
from redrive.admin.api.problems import problem_of
from redrive.errors import ConnectionLost, NotFound, OperationConflict, PeekUnsafe, RedriveError

WEB = Path(problems.__file__).parent


def said_in_code() -> Iterator[tuple[int, str]]:
    """Each status and type that stands in a call of `Problem`."""
    for path in WEB.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            match call:
                case ast.Call(
                    func=ast.Name("Problem"),
                    args=[ast.Constant(int() as status), ast.Constant(str() as kind), *_],
                ):
                    yield status, kind


def test_every_problem_that_is_answered_is_listed_with_its_status() -> None:
    said = list(said_in_code())
    assert len(said) > 10
    assert [(status, kind) for status, kind in said if kind not in KINDS or status not in KINDS[kind].status] == []


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (PeekUnsafe("q", "why", "fix"), "peek-unsafe", "peek-unsafe"),
        (OperationConflict("q", "op_1"), "operation-in-progress", "operation-conflict"),
        (NotFound(404, "no queue"), "not-found", "not-found"),
        (ConnectionLost("gone"), "broker-unavailable", "connection-lost"),
    ],
)
def test_a_problem_names_the_error_that_it_comes_of(error: RedriveError, kind: str, name: str) -> None:
    problem = problem_of(error)
    assert problem is not None
    told = problem.as_dict("/admin/x")
    assert (told["type"], told["error"]) == (f"urn:redrive:problem:{kind}", name)


def test_what_comes_of_no_error_of_ours_names_none() -> None:
    problem = problem_of(TimeoutError())
    assert problem is not None
    assert "error" not in problem.as_dict("/admin/x")
