"""`redrive topology`, as its user types it, on the embedded broker of a folder."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from redrive import Queue, Retry
from redrive.cli import main
from redrive.cli.loading import load_topology
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
    assert plan["summary"] == {
        "create": 8, "unchanged": 0, "existing": 0, "missing": 0, "conflict": 1, "unseen": 0, "extra": 0, "other": 0,
    }  # fmt: skip
    (conflict,) = (step for step in plan["steps"] if step["action"] == "conflict")
    assert {"what": "x-max-length", "have": 5, "want": None} in conflict["differences"]


def test_what_nobody_asked_for_is_drift_when_strict() -> None:
    assert topology("apply", RAFFLE).exit_code == 0
    Path("empty.toml").write_text("")
    relaxed = topology("check", "empty.toml")
    assert (relaxed.exit_code, relaxed.stdout.partition(": ")[2]) == (0, "9 of others\n")
    strict = topology("check", "empty.toml", "--strict")
    assert strict.exit_code == 9
    assert "· other     queue raffle_queue" in strict.stdout


def test_what_belongs_to_others_is_shown_to_those_who_ask_for_everything() -> None:
    assert topology("apply", RAFFLE).exit_code == 0
    Path("mine.toml").write_text(
        '[[exchanges]]\nname = "mine"\ntype = "fanout"\n'
        '[[queues]]\nname = "mine"\ndlq = false\nbind = { mine = [""] }\n'
        '[[queues]]\nname = "stale"\ndlq = false\nbind = { mine = [""] }\n'
    )
    assert topology("apply", "mine.toml").exit_code == 0
    Path("mine.toml").write_text('[[queues]]\nname = "stale"\ndlq = false\n')
    plan = topology("plan", "mine.toml")
    assert "raffle" not in plan.stdout
    assert "· extra     binding mine → stale []" in plan.stdout
    assert plan.stdout.endswith(": 1 unchanged, 1 extra, 12 of others\n")
    assert "raffle" not in topology("plan", "mine.toml", "--json").stdout
    everything = topology("plan", "mine.toml", "--all")
    assert "· other     queue raffle_queue" in everything.stdout
    assert "= unchanged queue stale" in everything.stdout


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


# existing queues ----------------------------------------------------------------------------------

OLD = """
[[exchanges]]
name = "events"
type = "topic"

[[queues]]
name = "orders"
dlq = false
bind = { events = ["order.*"] }
arguments = { x-message-ttl = 86400000, x-dead-letter-exchange = "", x-dead-letter-routing-key = "old.dead" }

[[queues]]
name = "old.dead"
dlq = false
"""


def test_an_existing_queue_stays_as_it_is_and_the_plan_says_what_that_means() -> None:
    Path("old.toml").write_text(OLD)
    assert topology("apply", "old.toml").exit_code == 0
    Path("shop.toml").write_text('[[queues]]\nname = "orders"\nexisting = true\nretry = { delay = "15s" }\n')
    plan = topology("plan", "shop.toml")
    assert plan.exit_code == 0
    assert "= existing  queue orders\n              as it is: " in plan.stdout
    assert "'x-message-ttl': 86400000" not in plan.stdout
    assert "x-message-ttl 86400000" in plan.stdout
    assert "goes to its own dead-letter exchange (default exchange), to old.dead" in plan.stdout
    assert topology("check", "shop.toml").exit_code == 9
    assert topology("apply", "shop.toml").exit_code == 0
    assert topology("check", "shop.toml").exit_code == 0
    assert topology("plan", "old.toml").stdout.partition(": ")[2] == "4 unchanged, 6 of others\n"
    migration = topology("migrate", "shop.toml", "orders", "--dry-run")
    assert (migration.exit_code, "it is taken as it is (existing=True)" in migration.stderr) == (6, True)


def test_an_existing_queue_that_is_missing_is_drift_and_an_error() -> None:
    Path("shop.toml").write_text('[[queues]]\nname = "orders"\nexisting = true\n')
    plan = topology("plan", "shop.toml")
    assert "! missing   queue orders" in plan.stdout
    assert "Redrive never creates a queue with existing=True" in plan.stderr
    assert topology("check", "shop.toml").exit_code == 9
    applied = topology("apply", "shop.toml")
    assert applied.exit_code == 4
    assert "existing=True takes a queue as it is, and never makes it" in applied.stderr


@pytest.mark.parametrize("form", ["python", "toml", "yaml"])
def test_a_declaration_of_an_existing_queue_is_written_and_can_be_applied(form: str) -> None:
    Path("old.toml").write_text(OLD)
    assert topology("apply", "old.toml").exit_code == 0
    name, source = ("adopted.py", "adopted:app") if form == "python" else (f"adopted.{form}", f"adopted.{form}")
    sys.modules.pop("adopted", None)
    assert topology("adopt", "orders", "--retry", "30s", "--format", form, "--output", name).exit_code == 0
    text = Path(name).read_text()
    assert "x-message-ttl 86400000" in text.splitlines()[0]
    assert "to old.dead" in text.splitlines()[1]
    assert load_topology(source).queues == (Queue("orders", existing=True, retry=Retry(delay="30s")),)
    assert topology("apply", source).exit_code == 0
    assert topology("check", source).exit_code == 0


@pytest.mark.parametrize("form", ["python", "toml", "yaml"])
def test_an_exact_declaration_is_what_the_broker_has(form: str) -> None:
    Path("old.toml").write_text(OLD)
    assert topology("apply", "old.toml").exit_code == 0
    name, source = ("exactly.py", "exactly:app") if form == "python" else (f"exactly.{form}", f"exactly.{form}")
    sys.modules.pop("exactly", None)
    assert topology("adopt", "orders", "--exact", "--format", form, "--output", name).exit_code == 0
    plan = topology("plan", source)
    assert plan.stdout.partition(": ")[2] == "3 unchanged, 1 of others\n"


def test_a_queue_that_does_not_exist_cannot_be_adopted() -> None:
    Path("old.toml").write_text(OLD)
    assert topology("apply", "old.toml").exit_code == 0
    missing = topology("adopt", "oders")
    assert missing.exit_code == 4
    assert "there is no queue oders, did you mean orders?" in missing.stderr
    assert topology("adopt", "orders", "--exact", "--retry", "15s").exit_code == 2


def test_an_argument_with_a_line_break_does_not_end_the_comment_on_its_queue() -> None:
    dlx = "gone\nraise OSError"
    arguments = f"arguments = {{ x-dead-letter-exchange = {json.dumps(dlx)} }}"
    Path("old.toml").write_text(f'[[queues]]\nname = "orders"\ndlq = false\n{arguments}\n')
    assert topology("apply", "old.toml").exit_code == 0
    sys.modules.pop("hostile", None)
    assert topology("adopt", "orders", "--output", "hostile.py").exit_code == 0
    assert "raise OSError" in Path("hostile.py").read_text()
    assert [queue.name for queue in load_topology("hostile:app").queues] == ["orders"]


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
