"""`redrive doctor`, as its user types it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from redrive.cli import main
from redrive.inspection.management import Management
from redrive.testing import Endpoint, free_port
from redrive.testing.broker import ThreadedBroker
from redrive.topology.snapshot import BrokerSnapshot
from unit.topology.doctor.surveys import classic, quorum, seen

MANAGEMENT = "http://me:secret@localhost:1"


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("REDRIVE_BROKER", "REDRIVE_MANAGEMENT", "REDRIVE_DATA"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The virtual hosts that were asked for. All hold a DLQ that deletes, and a queue for work without one."""
    vhosts: list[str] = []

    async def snapshot(_: Management, vhost: str) -> BrokerSnapshot:
        vhosts.append(vhost)
        return seen(quorum("q.dlq"), classic("q"), consumers={"q": 1})

    monkeypatch.setattr(Management, "snapshot", snapshot)
    return vhosts


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


@pytest.mark.usefixtures("asked")
def test_findings_are_told_by_severity_with_what_was_seen_and_what_mends_it() -> None:
    result = run("--management", MANAGEMENT)

    assert result.exit_code == 9
    assert result.stdout.splitlines() == [
        "1 error",
        "  q.dlq: tools that get and requeue messages can delete them from this dead-letter queue [peek-deletes]",
        '    seen: a quorum queue with no delivery limit of its own, and 20 is the default of RabbitMQ 4.3: "Get '
        'messages" in the management UI and other tools that requeue can delete messages from get 21 on; peeks of '
        "Redrive do not count",
        "    fix:  rabbitmqctl set_policy --apply-to queues q.dlq '^q\\.dlq$' '{\"delivery-limit\": -1}'",
        "",
        "1 warning",
        "  q: rejected messages vanish [no-dlq]",
        "    seen: it has 1 consumer, and has no dead-letter exchange",
        "    fix:  declare queue q.dlq; rabbitmqctl set_policy --apply-to queues q '^q$' "
        '\'{"dead-letter-exchange": "", "dead-letter-routing-key": "q.dlq"}\'',
        "",
    ]
    assert result.stderr == "RabbitMQ 4.3: 1 error, 1 warning, 0 info\n"


@pytest.mark.usefixtures("asked")
def test_json_is_a_list_of_objects_and_nothing_else() -> None:
    result = run("--management", MANAGEMENT, "--json")

    first, second = json.loads(result.stdout)
    assert (first["id"], second["id"]) == ("peek-deletes", "no-dlq")
    assert set(first) == {"id", "severity", "title", "subject", "evidence", "fix"}
    assert result.exit_code == 9


def test_severity_decides_the_exit_code_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def snapshot(_: Management, __: str) -> BrokerSnapshot:
        return seen(classic("q"), consumers={"q": 1})

    monkeypatch.setattr(Management, "snapshot", snapshot)

    assert run("--management", MANAGEMENT).exit_code == 9
    result = run("--management", MANAGEMENT, "--severity", "error")
    assert result.exit_code == 0
    assert "[no-dlq]" in result.stdout


def test_a_healthy_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def snapshot(_: Management, __: str) -> BrokerSnapshot:
        return seen()

    monkeypatch.setattr(Management, "snapshot", snapshot)

    result = run("--management", MANAGEMENT)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "RabbitMQ 4.3: nothing found\n")
    assert run("--management", MANAGEMENT, "--json").stdout == "[]\n"


def test_the_virtual_host_is_the_one_that_is_said_or_that_of_the_broker(asked: list[str]) -> None:
    run("--management", MANAGEMENT)
    run("--management", MANAGEMENT, "--broker", "amqp://localhost/shop")
    run("--management", MANAGEMENT, "--vhost", "other")

    assert asked == ["/", "shop", "other"]


def test_the_environment_says_where_the_management_api_is(monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    monkeypatch.setenv("REDRIVE_MANAGEMENT", MANAGEMENT)

    assert run().exit_code == 9
    assert asked == ["/"]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("wish", "coloured"), [("FORCE_COLOR", True), ("NO_COLOR", False)])
def test_colours_are_for_those_who_want_them(monkeypatch: pytest.MonkeyPatch, wish: str, coloured: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv(wish, "1")

    assert ("\x1b[1;31m1 error" in run("--management", MANAGEMENT).stdout) is coloured


def test_without_anything_to_look_at_it_is_a_usage_error() -> None:
    result = run()

    assert result.exit_code == 2
    assert "--management" in result.output


def test_an_app_has_its_virtual_host() -> None:
    assert run("some:app", "--vhost", "shop").exit_code == 2


def test_an_unknown_severity_is_a_usage_error() -> None:
    assert run("--severity", "fatal").exit_code == 2


def test_a_management_api_that_does_not_answer_ends_with_7_and_without_the_password() -> None:
    result = run("--management", f"http://me:secret@localhost:{free_port()}")

    assert result.exit_code == 7
    assert "does not answer" in result.stderr
    assert "secret" not in result.output


def test_the_embedded_broker_shows_everything_by_itself(tmp_path: Path) -> None:
    app = tmp_path / "app.toml"
    app.write_text('[[queues]]\nname = "q"\n')
    with ThreadedBroker() as broker:
        assert run("--broker", broker.url).exit_code == 0
        result = run(str(app), "--broker", broker.url)

    assert result.exit_code == 0, result.output
    assert "not-examined" not in result.stdout


def test_a_whole_virtual_host_of_a_living_rabbitmq(rabbitmq: Endpoint, amqp_url: str) -> None:
    vhost = amqp_url.rpartition("/")[2]
    command = ["--management", f"http://guest:guest@127.0.0.1:{rabbitmq.management_port}", "--vhost", vhost]
    healthy = run(*command)
    rabbitmq.api(f"/queues/{vhost}/q.retry", "PUT", {"durable": True, "arguments": {"x-message-ttl": 50}})

    ill = run(*command)

    assert (healthy.exit_code, ill.exit_code) == (0, 9)
    assert "q.retry: messages wait here and then vanish [ttl-no-way-back]" in ill.stdout
    assert "guest" not in ill.output


def test_over_plain_amqp_it_says_what_it_could_not_examine(amqp_url: str, tmp_path: Path) -> None:
    app = tmp_path / "app.toml"
    app.write_text('[[queues]]\nname = "q"\n')

    result = run(str(app), "--broker", amqp_url)

    assert result.exit_code == 0
    assert "[not-examined]" in result.stdout
    assert run("--broker", amqp_url).exit_code == 2
