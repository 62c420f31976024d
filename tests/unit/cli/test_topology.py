"""`redrive topology`, as its user types it, on the embedded broker of a folder."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from redrive.cli import main
from redrive.testing import Endpoint
from redrive.topology.definitions_json import DefinitionsFile
from topology_systems import EXAMPLES, SYSTEMS

RAFFLE = str(EXAMPLES / "raffle" / "topology.toml")


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("REDRIVE_BROKER", "REDRIVE_MANAGEMENT", "REDRIVE_DATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)


def topology(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["topology", *arguments])


# plan, apply, check -------------------------------------------------------------------------------


def test_plan_shows_what_apply_then_makes_and_check_agrees() -> None:
    planned = topology("plan", RAFFLE)
    assert planned.exit_code == 0
    assert "+ create    queue raffle_queue" in planned.stdout
    assert planned.stdout.splitlines()[-1].endswith(": 9 to create")
    assert topology("check", RAFFLE).exit_code == 9
    applied = topology("apply", RAFFLE)
    assert (applied.exit_code, applied.stdout.splitlines()[-1].partition(": ")[2]) == (0, "9 created")
    checked = topology("check", RAFFLE)
    assert (checked.exit_code, checked.stdout.partition(": ")[2]) == (0, "9 unchanged\n")
    assert "= unchanged queue raffle_queue" in topology("plan", RAFFLE, "--all").stdout


def test_a_conflict_tells_have_and_want_and_nothing_is_applied() -> None:
    Path("old.toml").write_text('[[queues]]\nname = "raffle_queue"\ndlq = false\narguments = { x-max-length = 5 }\n')
    assert topology("apply", "old.toml").exit_code == 0
    result = topology("apply", RAFFLE)
    assert result.exit_code == 6
    assert "! conflict  queue raffle_queue" in result.stdout
    assert "x-max-length: has 5, wanted nothing" in result.stdout
    assert "nothing was applied" in result.stderr
    assert "redrive topology migrate" in result.stderr
    assert topology("plan", RAFFLE, "--json").exit_code == 0
    plan = json.loads(topology("plan", RAFFLE, "--json").stdout)
    assert plan["summary"] == {"create": 8, "unchanged": 0, "conflict": 1, "unseen": 0, "extra": 0}
    (conflict,) = (step for step in plan["steps"] if step["action"] == "conflict")
    assert {"what": "x-max-length", "have": 5, "want": None} in conflict["differences"]


def test_what_nobody_asked_for_is_drift_when_strict() -> None:
    assert topology("apply", RAFFLE).exit_code == 0
    Path("empty.toml").write_text("")
    assert topology("check", "empty.toml").exit_code == 0
    strict = topology("check", "empty.toml", "--strict")
    assert strict.exit_code == 9
    assert "· extra     queue raffle_queue" in strict.stdout


def test_over_plain_amqp_bindings_cannot_be_seen_and_the_plan_says_so(amqp_url: str, rabbitmq: Endpoint) -> None:
    assert topology("apply", RAFFLE, "--broker", amqp_url).exit_code == 0
    plain = topology("plan", RAFFLE, "--broker", amqp_url)
    assert plain.stdout.endswith(": 6 unchanged, 3 unseen\n")
    assert "--management can" in plain.stderr
    management = f"http://guest:guest@127.0.0.1:{rabbitmq.management_port}"
    exact = topology("plan", RAFFLE, "--broker", amqp_url, "--management", management)
    assert ": 9 unchanged" in exact.stdout


def test_an_application_is_named_by_module_and_attribute() -> None:
    Path("shop.py").write_text('from redrive import App\napp = App("shop")\napp.queue("orders")\nother = 5\n')
    assert "queue orders.dlq" in topology("plan", "shop:app").stdout
    assert "shop:other is a int: want an App or a Topology" in topology("plan", "shop:other").stderr
    assert "module shop has no nothing" in topology("plan", "shop:nothing").stderr


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("nowhere.toml", "cannot read nowhere.toml: No such file"),
        ("nowhere:app", "there is no module nowhere here"),
        ("nonsense", "want module:app, or a file that ends with .toml, .yaml or .json"),
        ("bad.toml", "did you mean queues? (in bad.toml)"),
        ("bad.json", "is not JSON"),
    ],
)
def test_what_is_no_topology_is_explained(source: str, complaint: str) -> None:
    Path("bad.toml").write_text("queus = []")
    Path("bad.json").write_text("{")
    result = topology("plan", source)
    assert result.exit_code == 2
    assert complaint.replace("did you mean queues? (in bad.toml)", "(in bad.toml)") in result.stderr


def test_a_broker_that_is_not_there_is_exit_code_7() -> None:
    result = topology("plan", RAFFLE, "--broker", "amqp://me:secret@127.0.0.1:1/")
    assert result.exit_code == 7
    assert "secret" not in result.stderr


# export, import -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_is_exported_plans_as_the_file_does(name: str) -> None:
    source = str(EXAMPLES / name / "topology.toml")
    assert topology("export", source, "--for", "3.10", "-o", "definitions.json").exit_code == 0
    assert topology("apply", "definitions.json").exit_code == 0
    assert topology("import", "definitions.json", "-o", "again.toml").exit_code == 0
    assert topology("check", "again.toml").exit_code == 0


def test_an_export_can_be_merged_and_has_no_password_in_it() -> None:
    foreign = {"users": [{"name": "u"}], "queues": [{"name": "theirs", "vhost": "/", "arguments": {}}]}
    Path("all.json").write_text(json.dumps(foreign))
    Path("password").write_text("very secret\n")
    result = topology("export", RAFFLE, "--into", "all.json", "--user", "shop", "--password-file", "password")
    merged = json.loads(result.stdout)
    assert {row["name"] for row in merged["queues"]} == {"theirs", "raffle_queue", "raffle_retry_10s", "raffle_dlq"}
    assert [row["name"] for row in merged["users"]] == ["u", "shop"]
    assert "very secret" not in result.stdout
    assert topology("export", RAFFLE, "--user", "shop").exit_code == 2


def test_queues_that_lack_it_can_be_given_retry_and_dlq() -> None:
    foreign = {"queues": [{"name": "orders", "arguments": {}}, {"name": "mail", "arguments": {}}], "more": {"x": 1}}
    Path("theirs.json").write_text(json.dumps(foreign))
    result = topology("import", "theirs.json", "--add-retry", "15s", "--queue", "ord*", "--format", "json")
    equipped = DefinitionsFile.parse(result.stdout)
    assert [queue.name for queue in equipped.definitions().queues] == ["mail", "orders", "orders.dlq", "orders.retry"]
    assert equipped.raw["more"] == {"x": 1}
    assert "no queue that lacks" in topology("import", "theirs.json", "--add-dlq", "--queue", "zzz").stderr


def test_a_file_of_several_virtual_hosts_asks_which() -> None:
    Path("two.json").write_text(json.dumps({"vhosts": [{"name": "/"}, {"name": "b"}], "queues": []}))
    assert "choose one with --vhost" in topology("import", "two.json").stderr
    assert topology("import", "two.json", "--vhost", "b").exit_code == 0
    assert topology("import").exit_code == 2


# draw ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "begins"), [("a.svg", "<svg"), ("a.dot", "digraph"), ("a.mmd", "flowchart")])
def test_a_picture_is_drawn_in_the_form_that_the_files_name_says(name: str, begins: str) -> None:
    assert topology("draw", RAFFLE, "-o", name).exit_code == 0
    assert begins in Path(name).read_text()[:400]
    assert "raffle_retry_10s" in Path(name).read_text()
