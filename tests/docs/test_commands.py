"""What stands in a console block, and what is done with it."""

from pathlib import Path

import pytest

from docs.commands import Command, adapted, split, usual_port
from docs.markdown import Unreadable

ROOT = Path("/repository")


def test_a_command_goes_with_what_it_says() -> None:
    first, second = split("$ redrive ping\nhello\nthere\n$ true\n", line=10)
    assert (first.text, first.shown, first.line) == ("redrive ping", "hello\nthere\n", 10)
    assert (second.text, second.shown, second.line) == ("true", "", 13)


def test_a_command_goes_on_after_a_backslash() -> None:
    (command,) = split("$ curl -H 'a: b' \\\n       http://host\nanswer\n")
    assert (command.text, command.shown) == ("curl -H 'a: b' http://host", "answer\n")


def test_what_is_said_after_an_interrupt_is_apart() -> None:
    (command,) = split("$ redrive broker\nlistening\n^C\nbye\n")
    assert (command.shown, command.afterwards) == ("listening\n", "bye\n")


def test_a_block_that_begins_with_something_else_is_told_of() -> None:
    with pytest.raises(Unreadable):
        split("redrive ping\n")


@pytest.mark.parametrize(
    "text",
    [
        "redrive worker shop:app",
        "REDRIVE_BROKER=amqp://x redrive worker shop:app",
        "redrive serve shop:app --dev",
        "redrive outbox relay shop:app",
        "celery -A video worker",
        "python -m examples.nfe --only api",
        "redrive demo",
    ],
)
def test_programs_that_go_on_are_known(text: str) -> None:
    assert Command(text).ready is not None


@pytest.mark.parametrize(
    "text",
    [
        "redrive dlq ls",
        "redrive worker --help",
        "redrive demo --once",
        "python -m examples.errorfilter send",
        "python -m examples.video --once",
        "celery -A video inspect active",
        "python publish.py",
    ],
)
def test_programs_that_end_are_known(text: str) -> None:
    assert Command(text).ready is None


@pytest.mark.parametrize(
    "text", ["redrive dlq ls", "curl -s http://x", "sqlite3 a.db 'SELECT 1'", "redrive ops show 1"]
)
def test_what_looks_may_be_asked_again(text: str) -> None:
    assert Command(text).looks


@pytest.mark.parametrize(
    "text", ["redrive dlq redrive q --yes", "curl --json '{}' http://x", "curl -d x http://x", "sqlite3 a.db 'DELETE'"]
)
def test_what_changes_something_is_done_once(text: str) -> None:
    assert not Command(text).looks


def test_whoever_listens_does_so_where_nobody_else_does() -> None:
    assert adapted(Command("redrive serve shop:app"), 4711, ROOT) == "redrive serve shop:app --port 4711"
    assert adapted(Command("redrive serve --port 9000"), 4711, ROOT) == "redrive serve --port 9000"
    assert adapted(Command("redrive worker shop:app"), 4711, ROOT) == "redrive worker shop:app"
    assert usual_port(Command("redrive broker")) == 5672
    assert usual_port(Command("redrive dlq ls")) is None


def test_make_is_asked_what_it_would_do() -> None:
    assert adapted(Command("make demo"), 1, ROOT) == "make -n -C /repository demo"


def test_variables_last() -> None:
    assert Command("export REDRIVE_BROKER=amqp://x/").exported == ("REDRIVE_BROKER", "amqp://x/")
    assert Command("KEY=$(redrive admin keys create me)").exported == ("KEY", "$(redrive admin keys create me)")
    assert Command("KEY=1 redrive ping").exported is None


def test_what_is_installed_already_is_not_installed() -> None:
    assert Command("pip install 'redrive[admin]'").not_run
    assert Command("redrive ping").not_run is None
