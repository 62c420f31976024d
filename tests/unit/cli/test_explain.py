"""What can be looked up by its name, and that whoever needs it is told that name."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections import Counter

import pytest
from click.testing import CliRunner, Result

import redrive
from redrive.cli import exit_codes, main
from redrive.cli.exit_codes import EXITS, exit_code, pointer
from redrive.cli.explain import error_explanation, everything, explanations_named, kinds_of_errors
from redrive.errors import (
    ConnectionLost,
    InvalidURL,
    NotFound,
    PeekUnsafe,
    PublishErrors,
    RedriveError,
    TopologyConflict,
    name_of,
)
from redrive.testing import free_port
from redrive.topology.doctor import RULES


def explain(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(main, ["explain", *arguments])


# What is known ------------------------------------------------------------------------------------------


def below(kind: type[RedriveError]) -> set[type[RedriveError]]:
    return {kind}.union(*map(below, kind.__subclasses__()))


def test_every_error_in_the_package_is_known() -> None:
    for module in pkgutil.walk_packages(redrive.__path__, "redrive."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    declared = {kind for kind in below(RedriveError) if kind.__module__.startswith("redrive.")}
    private = {kind for kind in declared if kind.__name__.startswith("_")}
    assert declared - private == set(kinds_of_errors())


@pytest.mark.parametrize("kind", kinds_of_errors(), ids=name_of)
def test_every_error_says_what_it_means_whose_fault_it_is_and_what_to_do(kind: type[RedriveError]) -> None:
    known = error_explanation(kind)
    assert known.meaning.endswith(".")
    assert {"Whose fault", "What to do"} <= dict(known.facts).keys()


def test_no_two_errors_have_the_same_name() -> None:
    assert [name for name, count in Counter(map(name_of, kinds_of_errors())).items() if count > 1] == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [(TopologyConflict, "topology-conflict"), (InvalidURL, "invalid-url"), (RedriveError, "redrive-error")],
)
def test_an_errors_name_is_that_of_its_class(kind: type[RedriveError], name: str) -> None:
    assert name_of(kind) == name


def test_what_an_error_does_not_say_itself_is_as_in_the_one_above_but_for_the_cause() -> None:
    above, own = dict(error_explanation(NotFound.__bases__[0]).facts), dict(error_explanation(NotFound).facts)
    assert own["Whose fault"] == above["Whose fault"]
    assert own["Why"] != above["Why"]


def test_every_finding_of_the_doctor_is_known() -> None:
    known = {each.name for each in everything() if each.kind == "a finding of the doctor"}
    assert known == {rule.id for rule in RULES}


def test_every_exit_code_that_a_command_can_name_is_in_the_table() -> None:
    named = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert named == {known.code for known in EXITS}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (InvalidURL, 2),
        (NotFound, 4),
        (PeekUnsafe, 5),
        (TopologyConflict, 6),
        (ConnectionLost, 7),
        (PublishErrors, 7),
    ],
)
def test_an_error_ends_a_command_with_the_code_of_its_kind(kind: type[RedriveError], code: int) -> None:
    assert exit_code(kind) == code
    assert dict(error_explanation(kind).facts)["Exit code"] == str(code)


# Looking it up ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["peek-unsafe", "PeekUnsafe", "peek_unsafe", "urn:redrive:problem:peek-unsafe"])
def test_a_name_is_found_however_it_is_written(written: str) -> None:
    assert [each.kind for each in explanations_named(written)] == ["an error", "a problem of the REST API"]


def test_an_error_is_explained() -> None:
    said = explain("topology-conflict")
    assert said.exit_code == 0
    assert said.output.startswith("TopologyConflict   an error\n")
    assert "redrive topology migrate" in said.output
    assert "docs/reference/errors.md#topology-conflict" in said.output


def test_an_exit_code_names_the_errors_that_end_with_it() -> None:
    assert "topology-conflict, operation-conflict" in explain("6").output


def test_a_finding_is_explained_as_in_the_doctors_table() -> None:
    rule = RULES[0]
    assert rule.title[1:] in explain(rule.id).output


def test_a_name_that_nothing_has_is_a_mistake_with_the_one_that_was_probably_meant() -> None:
    said = explain("topology-conflct")
    assert said.exit_code == 2
    assert "did you mean topology-conflict?" in said.output


def test_without_a_name_everything_is_listed() -> None:
    said = explain()
    assert [each.name for each in everything() if f"  {each.name} " not in said.output] == []


def test_scripts_get_json() -> None:
    [one] = json.loads(explain("publish-unknown", "--json").output)
    assert one["name"] == "publish-unknown"
    assert one["page"] == "docs/reference/errors.md#publish-unknown"


# Being told the name ------------------------------------------------------------------------------------


def test_a_command_that_fails_names_the_error_on_its_last_line() -> None:
    said = CliRunner().invoke(main, ["ping", "--broker", f"amqp://localhost:{free_port()}/"])
    assert said.stderr.splitlines()[-1] == (
        "  redrive explain connection-failed   docs/reference/errors.md#connection-failed"
    )
    assert said.stdout == ""


@pytest.mark.parametrize("kind", kinds_of_errors(), ids=name_of)
def test_what_it_says_can_be_typed(kind: type[RedriveError]) -> None:
    _, command, name, _ = pointer(kind).split()
    assert command == "explain"
    assert explanations_named(name)
