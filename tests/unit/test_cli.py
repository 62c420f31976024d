"""The `redrive` command, as its user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from redrive import __version__
from redrive.cli import main
from redrive.testing import free_port


def redrive(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_the_version_is_the_packages() -> None:
    assert redrive("--version").output == f"redrive, version {__version__}\n"


def test_help_lists_the_commands() -> None:
    assert "ping" in redrive("--help").output


def test_a_broker_that_is_not_there_ends_with_code_7_and_its_address() -> None:
    port = free_port()

    result = redrive("ping", "--broker", f"amqp://me:secret@localhost:{port}/")

    assert result.exit_code == 7
    assert f"localhost:{port}: Connection refused" in result.output
    assert "secret" not in result.output


def test_a_url_that_makes_no_sense_is_a_usage_error() -> None:
    result = redrive("ping", "--broker", "amqp://localhost/?hartbeat=3")

    assert result.exit_code == 2
    assert "did you mean heartbeat?" in result.output


@pytest.mark.parametrize("form", ["sentence", "json"])
def test_ping_says_which_broker_answered(amqp_url: str, form: str) -> None:
    result = redrive("ping", "--broker", amqp_url, *(["--json"] if form == "json" else []))

    assert result.exit_code == 0
    assert (json.loads(result.output)["product"] if form == "json" else result.output).startswith("RabbitMQ")


def test_the_broker_refuses_an_empty_password_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("\n")

    told = CliRunner().invoke(
        main, ["broker", "--port", "0", "--memory", "--user", "ada", "--password-file", str(file)]
    )

    assert told.exit_code == 2
    assert f"{file} is empty" in told.output


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        ("redrive.errors.ConfigurationError('SHOP_PORT: want a number')", 2, "redrive: SHOP_PORT: want a number\n"),
        ("sqlalchemy.exc.OperationalError('SELECT', {}, OSError('refused'))", 7, "cannot be reached: refused."),
        ("ValueError('a defect')", 1, "Traceback"),
    ],
    ids=["setting", "database", "defect"],
)
def test_an_error_that_is_not_caught_is_explained_where_that_is_wanted(raised: str, code: int, told: str) -> None:
    program = (
        "import redrive.errors, sqlalchemy.exc\n"
        "from redrive.cli.loading import explain_uncaught_errors\n"
        f"explain_uncaught_errors()\nraise {raised}"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (ended.returncode, told in ended.stderr) == (code, True), ended.stderr
    assert ("Traceback" in ended.stderr) is (code == 1)
