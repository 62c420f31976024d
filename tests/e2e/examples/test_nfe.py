"""The invoices, sentence by sentence as their document (seed 003) says."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import httpx
import pytest
import sqlalchemy as sa
import yaml
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from click.testing import CliRunner
from pydantic import ValidationError

from e2e.examples.checklist import Checklist
from e2e.examples.stacks import ROOT, Program, Stack
from examples.nfe import migrations
from examples.nfe.__main__ import main
from examples.nfe.chave import check_digit, is_chave, is_cnpj, is_cpf, make_chave
from examples.nfe.layout import make_xml
from examples.nfe.nota import Nota
from examples.nfe.settings import Settings, settings_of
from examples.nfe.storage import XmlStorage
from redrive.client import Connection, Delivery, Properties
from redrive.database.application_tables import RowState
from redrive.database.engine import Database
from redrive.errors import ConfigurationError
from redrive.inspection import inspect_broker
from redrive.outbox.mode import OutboxMode
from redrive.testing.ports import free_port
from redrive.topology import Server, expand
from redrive.topology.plan import Action, make_plan
from topology_systems import system
from working import depth, take

EXAMPLE = ROOT / "examples" / "nfe"
NOTA = json.loads((EXAMPLE / "nota.json").read_text())
MAIN, RETRY, DLQ = "sagnus.nfe.events.q", "sagnus.nfe.events.retry.q", "sagnus.nfe.events.dlq"
SPACE = {"nfe": "http://www.portalfiscal.inf.br/nfe"}
RABBIT = {"SAGNUS_NFE_OUTBOX_TRANSPORT": "RABBIT"}
MOMENT = datetime(2026, 11, 16, 12, tzinfo=UTC)
WORKER = RABBIT | {"SAGNUS_NFE_WORKER_ENABLED": "true"}
NO_DECLARING = {"SAGNUS_NFE_OUTBOX_RABBIT_AUTODECLARE": "false"}

says = Checklist(
    {
        "outbox": "A transactional outbox persists the events in the table nfe_outbox_event.",
        "envelope": "A JSON envelope of each event is then published to RabbitMQ when "
        "sagnus.nfe.outbox.transport=RABBIT.",
        "local": "With another transport (LOCAL, the default) nothing is published to RabbitMQ, even if a broker is "
        "named.",
        "worker": "The worker, when enabled, consumes the queue and processes the events: NfeEmitidaEvent becomes XML, "
        "and the XML is stored.",
        "atomic": "If the transaction of the emission commits, the event is safe in the database.",
        "apart": "The worker works outside the transaction of the emission: the API answers before the XML is made.",
        "retries": "Retry and DLQ are in RabbitMQ: a retry queue with a TTL, and a DLQ.",
        "publishing": "The outbox remains responsible for retrying a publish.",
        "docker": "RabbitMQ is started with docker run, from the image rabbitmq:3-management.",
        "rabbit": "The example runs on RabbitMQ with the management plugin.",
        "file": "The flags sagnus.nfe.outbox.transport: RABBIT and sagnus.nfe.worker.enabled: true are set in "
        "application-local.yml.",
        "variables": "They can be set by environment variables instead.",
        "listener": "With worker.enabled=true the in-process listener NfeEmitidaToXmlListener is off, so that the XML "
        "is not made twice.",
        "declare": "With sagnus.nfe.outbox.rabbit.autoDeclare=true the module declares its topology.",
        "exchange": "The exchange is sagnus.nfe.events, direct. The document says “direct by default”; here it is "
        "always direct, because all keys are exact.",
        "main": "The main queue is sagnus.nfe.events.q, with the routing key nfe.event.",
        "retry": "The retry queue is sagnus.nfe.events.retry.q, with the routing key nfe.event.retry.",
        "ttl": "The retry queue has a TTL (retryTtlMs) and dead-letters back to nfe.event.",
        "dlq": "The DLQ is sagnus.nfe.events.dlq, with the routing key nfe.event.dlq.",
        "nack": "On an error the worker sends a NACK with requeue=false.",
        "dlx": "The main queue has a DLX that sends to the retry queue.",
        "back": "The retry queue applies its TTL and returns the message to the main queue.",
        "x-death": "The worker reads the header x-death to count the attempts.",
        "max": "When maxDeliveries is used up, the worker publishes the envelope to the DLQ and sends an ACK. The "
        "document says “exceeds”: here maxDeliveries=5 is five deliveries in all, and the failure of the fifth parks.",
        "inbox": "The worker marks eventId in nfe_inbox_processed.",
        "redelivery": "If the same event arrives again, the worker sends an ACK and ignores it.",
        "migration": "The migration is V3__create_nfe_inbox_processed.sql.",
    },
    untested={
        "docker": "It needs a container engine. The tests start a private RabbitMQ 3.10 with the management plugin.",
    },
)


def nota(number: int = 42, **changes: Any) -> dict[str, Any]:
    return NOTA | {"numero": number} | changes


# What is made -------------------------------------------------------------------------------------


@says("exchange", "main", "retry", "ttl", "dlq", "dlx")
def test_the_topology_is_that_of_the_text_and_of_the_file() -> None:
    from examples.nfe.app import app

    server = Server(version=(3, 10))
    made = expand(app.topology, server)

    assert made == expand(system("nfe"), server)
    assert [(one.name, one.type) for one in made.exchanges] == [("sagnus.nfe.events", "direct")]
    assert {(one.destination, one.source, one.routing_key) for one in made.bindings} == {
        (MAIN, "sagnus.nfe.events", "nfe.event"),
        (RETRY, "sagnus.nfe.events", "nfe.event.retry"),
        (DLQ, "sagnus.nfe.events", "nfe.event.dlq"),
    }
    arguments = {one.name: {k: v for k, v in one.arguments.items() if k != "x-queue-type"} for one in made.queues}
    dead = "x-dead-letter-exchange", "x-dead-letter-routing-key"
    assert arguments == {
        MAIN: dict(zip(dead, ("sagnus.nfe.events", "nfe.event.retry"), strict=True)),
        RETRY: dict(zip(dead, ("sagnus.nfe.events", "nfe.event"), strict=True)) | {"x-message-ttl": 30_000},
        DLQ: {},
    }


@says("file", "variables")
def test_flags_come_from_the_file_of_the_text_and_the_environment_has_the_last_word() -> None:
    file = (EXAMPLE / "application-local.yml").read_text()

    assert yaml.safe_load(file) == {"sagnus": {"nfe": {"outbox": {"transport": "RABBIT"}, "worker": {"enabled": True}}}}
    assert settings_of("", {}) == Settings(OutboxMode.LOCAL, worker_enabled=False, auto_declare=True)
    assert settings_of(file, {}) == Settings(OutboxMode.RABBIT, worker_enabled=True)
    above = {"SAGNUS_NFE_WORKER_ENABLED": "false", "SAGNUS_NFE_OUTBOX_TRANSPORT": "local", "SAGNUS_OTHER": "x"}
    assert settings_of(file, above) == Settings(OutboxMode.LOCAL, worker_enabled=False)
    every = {
        "SAGNUS_NFE_OUTBOX_TRANSPORT": "RABBIT",
        "SAGNUS_NFE_OUTBOX_RABBIT_AUTODECLARE": "false",
        "SAGNUS_NFE_OUTBOX_RABBIT_RETRYTTLMS": "250",
        "SAGNUS_NFE_WORKER_ENABLED": "TRUE",
        "SAGNUS_NFE_WORKER_MAXDELIVERIES": "7",
        "SAGNUS_NFE_XML_FOLDER": "/mnt/xml",
    }
    wanted = Settings(OutboxMode.RABBIT, False, 250, True, 7, Path("/mnt/xml"))
    assert settings_of("", every) == wanted
    relaxed = "sagnus.nfe: {outbox: {transport: RABBIT, rabbit: {auto-declare: false, retry_ttl_ms: 250}}}"
    assert settings_of(relaxed, {}) == Settings(OutboxMode.RABBIT, auto_declare=False, retry_ttl_ms=250)


@pytest.mark.parametrize(
    ("file", "said", "complaint"),
    [
        ("sagnus: {nfe: {worker: {enable: true}}}", {}, "unknown option sagnus.nfe.worker.enable, did you mean"),
        ("", {"SAGNUS_NFE_OUTBOX_TRANSPROT": "LOCAL"}, "did you mean sagnus.nfe.outbox.transport?"),
        ("", {"SAGNUS_NFE_OUTBOX_TRANSPORT": "RABIT"}, "did you mean RABBIT?"),
        ("", {"SAGNUS_NFE_OUTBOX_RABBIT_AUTODECLARE": "maybe"}, "autoDeclare=maybe: want true or false"),
        ("", {"SAGNUS_NFE_WORKER_MAXDELIVERIES": "1"}, "maxDeliveries=1: want a number from 2"),
        ("", {"SAGNUS_NFE_OUTBOX_RABBIT_RETRYTTLMS": "-5"}, "retryTtlMs=-5: want a number from 1"),
        ("", {"SAGNUS_NFE_XML_FOLDER": ""}, "want a folder"),
        ("a: b: c", {}, "application-local.yml"),
        ("", {"SAGNUS_NFE_WORKER_ENABLED": "true"}, "nobody would make the XML"),
    ],
)
def test_flags_that_make_no_sense_are_explained(file: str, said: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings_of(file, said)

    assert complaint in str(caught.value)


@says("migration", "outbox")
def test_the_migrations_make_what_the_program_uses(stack: Stack) -> None:
    from examples.nfe.app import app

    database = Database(stack.database) if stack.database is not None else Database.embedded(stack.data)
    wanted = sa.MetaData()
    for table in (app.outbox.table, app.inbox.table):
        table.to_metadata(wanted)
    try:
        applied = migrations.migrate(database)
        with database.reading_connection() as connection:
            options = {
                "include_name": lambda name, kind, _: kind != "table" or name in wanted.tables,
                "compare_type": _is_another_type,
            }
            differences = compare_metadata(MigrationContext.configure(connection, opts=options), wanted)
            triggers = _triggers(connection)
        again = migrations.migrate(database)
        app.schema.upgrade(database)  # what Redrive keeps beside them; these it finds
    finally:
        asyncio.run(database.close())

    assert applied == [
        "V1__create_nfe.sql",
        "V2__create_nfe_outbox_event.sql",
        "V3__create_nfe_inbox_processed.sql",
    ]
    assert (differences, again) == ([], [])
    assert set(wanted.tables) == {"nfe_outbox_event", "nfe_inbox_processed"}
    assert triggers == (["nfe_outbox_event_notify"] if stack.database is not None else [])


def _is_another_type(context: MigrationContext, _: object, __: object, have: Any, want: Any) -> bool | None:
    """SQLite goes by the affinity of a column: TIMESTAMP WITH TIME ZONE has the same as DATETIME, NUMERIC."""
    is_moment = context.dialect.name == "sqlite" and isinstance(want, sa.DateTime)
    return not isinstance(have, sa.Numeric | sa.DateTime) if is_moment else None


def _triggers(connection: sa.Connection) -> list[str]:
    if connection.dialect.name == "sqlite":
        return []
    return list(connection.exec_driver_sql("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal").scalars())


# What an invoice is -------------------------------------------------------------------------------


def test_a_key_has_44_digits_of_which_the_last_checks_the_others() -> None:
    # The example of the tax context's own manual: a sum of 644, of which 6 remain.
    assert check_digit("5206043300991100250655012000000780026730161") == "5"
    chave = make_chave(state="35", at=MOMENT, cnpj="12345678000195", series=1, number=42, code=1234567)

    assert chave[:43] == "3526111234567800019555001000000042101234567"
    assert is_chave(chave)
    assert not is_chave(chave[:-1] + str((int(chave[-1]) + 1) % 10))
    assert [is_cnpj(text) for text in ("12345678000195", "12345678000196", "11111111111111", "1234567800019")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert [is_cpf(text) for text in ("52998224725", "52998224726", "00000000000", "５2998224725")] == [
        True, False, False, False,
    ]  # fmt: skip


def test_amounts_are_rounded_line_by_line_and_add_up() -> None:
    found = Nota.model_validate(NOTA)

    assert [item.valor for item in found.itens] == [Decimal("50.00"), Decimal("12.30")]  # 1.5 × 33.33 = 49.995
    assert (found.valor_produtos, found.desconto, found.valor_total) == (
        Decimal("62.30"), Decimal("0.30"), Decimal("62.00"),
    )  # fmt: skip


def item(**changes: Any) -> dict[str, Any]:
    return NOTA["itens"][0] | changes


@pytest.mark.parametrize(
    "broken",
    [
        {"itens": []},
        {"itens": [item(quantidade="0")]},
        {"itens": [item(quantidade="0.0001", valor_unitario="0.01")]},
        {"itens": [item(desconto="50.01")]},
        {"itens": [item(valor_unitario="NaN")]},
        {"itens": [item(descricao="line\nbreak")]},
        {"itens": [item(preco="1")]},
        {"numero": 0},
        {"destinatario": {"documento": "52998224726", "nome": "Ada"}},
        {"emitente": NOTA["emitente"] | {"cnpj": "12345678000196"}},
        {"natureza": " Venda"},
    ],
    ids=str,
)
def test_what_is_no_invoice_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Nota.model_validate(NOTA | broken)


def test_the_xml_is_well_formed_whatever_the_texts_say_and_the_same_each_time() -> None:
    names = {"natureza": "]]> & <b>", "destinatario": {"documento": "12345678000195", "nome": "\"Ção\" & 'Cia'"}}
    found = Nota.model_validate(nota(7, **names))
    chave = make_chave(state="35", at=MOMENT, cnpj=found.emitente.cnpj, series=1, number=7, code=1)

    xml = make_xml(found, chave=chave, at="2026-11-16T12:00:00-03:00")

    root = ET.fromstring(xml)
    assert root.findtext("nfe:infNFe/nfe:ide/nfe:natOp", namespaces=SPACE) == "]]> & <b>"
    assert root.findtext("nfe:infNFe/nfe:dest/nfe:CNPJ", namespaces=SPACE) == "12345678000195"
    assert root.findtext("nfe:infNFe/nfe:dest/nfe:xNome", namespaces=SPACE) == "\"Ção\" & 'Cia'"
    assert make_xml(found, chave=chave, at="2026-11-16T12:00:00-03:00") == xml


def test_a_file_appears_whole_or_not_at_all_and_only_under_the_name_of_a_key(tmp_path: Path) -> None:
    chave = make_chave(state="35", at=MOMENT, cnpj="12345678000195", series=1, number=7, code=1)
    storage = XmlStorage(tmp_path / "volume")
    with pytest.raises(FileNotFoundError):
        storage.put(chave, b"<NFe/>")
    storage.folder.mkdir()
    (storage.folder / f"{chave}-nfe.xml").mkdir()  # something is in the way

    with pytest.raises(OSError, match="directory"):
        storage.put(chave, b"<NFe/>")

    assert [path.name for path in storage.folder.iterdir()] == [f"{chave}-nfe.xml"]  # no part of it is left
    with pytest.raises(ValueError, match="not the key of an invoice"):
        storage.get("../../etc/passwd")


# At work ------------------------------------------------------------------------------------------


class Nfe:
    """The parts of the example as processes, and what its users do."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.volume = stack.folder / "volume"
        self.volume.mkdir()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{free_port()}", timeout=30)
        self.flags = {
            "SAGNUS_NFE_OUTBOX_RABBIT_RETRYTTLMS": "300",
            "SAGNUS_NFE_WORKER_MAXDELIVERIES": "3",
            "SAGNUS_NFE_XML_FOLDER": str(self.volume),
        }
        self.programs: list[Program] = []

    # Running ----------------------------------------------------------------------------------------

    @contextmanager
    def running(self, part: str | None, log: str | None = None, **said: str) -> Iterator[Program]:
        only = ("--only", part) if part is not None else ()
        port = ("--port", str(self.client.base_url.port))
        log = f"{log or part or 'all'}.log"
        with self.stack.running("examples.nfe", *only, *port, log=log, **self.flags, **said) as program:
            self.programs.append(program)
            yield program

    def run(self, *command: str, **said: str) -> Any:
        return self.stack.run(*command, **self.flags, **said)

    def answers(self) -> bool:
        try:
            return self.client.get("/nfe/none").status_code == 422
        except httpx.TransportError:
            return False

    def until(self, condition: Callable[[], Any], within: float = 60) -> Any:
        deadline = time.monotonic() + within
        while not (found := condition()):
            assert time.monotonic() < deadline, "\n".join(program.output[-3000:] for program in self.programs)
            time.sleep(0.05)
        return found

    # What users do ----------------------------------------------------------------------------------

    def emit(self, number: int) -> str:
        answer = self.client.post("/nfe", json=nota(number))
        assert answer.status_code == 201, answer.text
        chave = str(answer.json()["chave"])
        assert is_chave(chave)
        assert answer.headers["location"] == f"/nfe/{chave}"
        return chave

    def xml(self, chave: str) -> bytes | None:
        answer = self.client.get(f"/nfe/{chave}/xml")
        assert answer.status_code in (200, 404), answer.text
        return answer.content if answer.status_code == 200 else None

    # What can be seen -------------------------------------------------------------------------------

    def outbox(self) -> list[Any]:
        with self.stack.looking() as connection:
            columns = "event_id, exchange, routing_key, payload, state, attempts, last_error"
            return list(connection.exec_driver_sql(f"SELECT {columns} FROM nfe_outbox_event ORDER BY id"))

    def published(self) -> list[bytes]:
        return [bytes(row.payload) for row in self.outbox() if row.state == RowState.PUBLISHED]

    def inbox(self) -> list[str]:
        with self.stack.looking() as connection:
            return list(connection.exec_driver_sql("SELECT event_id FROM nfe_inbox_processed").scalars())

    def change(self, statement: str, **values: str) -> None:
        with self.stack.looking() as connection:
            assert connection.execute(sa.text(statement), values).rowcount == 1

    def held(self, queue: str) -> int:
        async def ask() -> int:
            async with self.stack.connection() as connection:
                return await depth(connection, queue)

        return asyncio.run(ask())

    def taken(self, queue: str, count: int) -> list[Delivery]:
        async def read() -> list[Delivery]:
            async with self.stack.connection() as connection:
                return [await take(connection, queue) for _ in range(count)]

        return asyncio.run(read())

    def do(self, work: Callable[[Connection], Any]) -> None:
        async def done() -> None:
            async with self.stack.connection() as connection:
                await work(connection)

        asyncio.run(done())


@pytest.fixture
def nfe(stack: Stack) -> Iterator[Nfe]:
    nfe = Nfe(stack)
    with nfe.client:
        yield nfe


def stored(program: Program) -> list[str]:
    """The keys whose XML this process has made."""
    return [entry["message"].split()[3] for entry in entries(program) if "is stored" in entry.get("message", "")]


def entries(program: Program, **wanted: Any) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in program.output.splitlines() if line.startswith("{")]
    return [entry for entry in found if wanted.items() <= entry.items()]


@says(
    "outbox", "envelope", "worker", "rabbit", "file", "listener", "inbox", "redelivery", "retries", "nack", "dlx",
    "back", "x-death", "max",
)  # fmt: skip
def test_a_worker_makes_each_xml_once_and_what_fails_waits_is_parked_and_driven_again(nfe: Nfe) -> None:
    shutil.copy(EXAMPLE / "application-local.yml", nfe.stack.folder)  # RABBIT, and the worker
    with ExitStack() as programs:
        api, _, worker = (programs.enter_context(nfe.running(part)) for part in ("api", "relay", "worker"))
        worker.wait_for("nfe is working on .*: sagnus.nfe.events.q")
        api.wait_for("NfeEmitidaToXmlListener is off")
        nfe.until(nfe.answers)
        assert nfe.stack.broker is None or "RabbitMQ" in worker.output

        chave = nfe.emit(42)
        xml = nfe.until(lambda: nfe.xml(chave))
        the_xml_says_what_was_emitted(xml, chave)
        the_event_is_in_its_envelope(nfe, chave)
        nfe.until(lambda: len(nfe.inbox()) == 1)
        assert nfe.inbox() == [nfe.outbox()[0].event_id]

        the_same_event_again_is_ignored(nfe, worker, chave)
        late = what_fails_is_rejected_and_comes_back_and_ends_in_the_dlq(nfe, worker)
        what_is_mended_is_driven_again(nfe, late)
        what_cannot_be_mended_by_waiting_does_not_wait(nfe, worker)

        assert sorted(stored(worker)) == sorted([chave, late])  # each once, and by nobody else
        assert stored(api) == []


def the_xml_says_what_was_emitted(xml: bytes, chave: str) -> None:
    root = ET.fromstring(xml)
    content = root[0]
    assert (root.tag, content.tag) == (f"{{{SPACE['nfe']}}}NFe", f"{{{SPACE['nfe']}}}infNFe")
    assert content.attrib == {"versao": "4.00", "Id": f"NFe{chave}"}
    parts = [part.tag.rpartition("}")[2] for part in content]
    assert parts == ["ide", "emit", "dest", "det", "det", "total", "transp", "pag"]
    found = {
        path: content.findtext("/".join(f"nfe:{tag}" for tag in path.split("/")), namespaces=SPACE)
        for path in ("ide/nNF", "ide/cDV", "emit/CNPJ", "emit/xNome", "dest/CPF", "total/ICMSTot/vProd",
                     "total/ICMSTot/vDesc", "total/ICMSTot/vNF")
    }  # fmt: skip
    assert list(found.values()) == [
        "42", chave[-1], "12345678000195", "Café & Filhos Ltda", "52998224725", "62.30", "0.30", "62.00",
    ]  # fmt: skip
    products = content.findall("nfe:det/nfe:prod", SPACE)
    texts = [[one.findtext(f"nfe:{tag}", namespaces=SPACE) for tag in ("xProd", "qCom", "vProd")] for one in products]
    assert texts == [["Café <torrado> em grão, 1 kg", "1.5000", "50.00"], ["Filtro de papel", "3.0000", "12.30"]]


def the_event_is_in_its_envelope(nfe: Nfe, chave: str) -> None:
    (row,) = nfe.until(lambda: nfe.published() and nfe.outbox())
    assert (row.exchange, row.routing_key, row.last_error) == ("sagnus.nfe.events", "nfe.event", None)
    envelope = json.loads(row.payload)
    occurred, payload = envelope.pop("occurredAt"), envelope.pop("payload")
    assert envelope == {
        "eventId": row.event_id,
        "eventType": "NfeEmitidaEvent",
        "aggregateType": "Nfe",
        "aggregateId": chave,
        "correlationId": chave,
    }
    assert occurred.endswith("+00:00")
    assert (payload["chave"], payload["numero"], payload["valorTotal"]) == (chave, 42, "62.00")


def the_same_event_again_is_ignored(nfe: Nfe, worker: Program, chave: str) -> None:
    (row,) = nfe.outbox()
    file = nfe.volume / f"{chave}-nfe.xml"
    before = file.stat()

    async def again(connection: Connection) -> None:
        # Without an id of its own: what it is known by is in the envelope.
        await connection.publish("sagnus.nfe.events", "nfe.event", bytes(row.payload), Properties(delivery_mode=2))

    nfe.do(again)
    nfe.until(lambda: entries(worker, outcome="duplicate", queue=MAIN))
    nfe.until(lambda: nfe.held(MAIN) == 0)  # acknowledged
    assert nfe.inbox() == [row.event_id]
    after = file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert stored(worker) == [chave]


def what_fails_is_rejected_and_comes_back_and_ends_in_the_dlq(nfe: Nfe, worker: Program) -> str:
    async def watch(connection: Connection) -> None:
        await connection.declare_queue("rejected")
        await connection.bind_queue("rejected", "sagnus.nfe.events", "nfe.event.retry")

    nfe.do(watch)
    nfe.volume.rename(nfe.stack.folder / "away")
    chave = nfe.emit(43)
    envelope = bytes(nfe.outbox()[1].payload)

    nfe.until(lambda: entries(worker, outcome="parked", correlationId=chave))
    told = entries(worker, correlationId=chave)
    assert [(line["outcome"], line["attempt"], line["maxAttempts"]) for line in told] == [
        ("retried", 1, 3), ("retried", 2, 3), ("parked", 3, 3),
    ]  # fmt: skip
    assert all("FileNotFoundError" in line["error"] for line in told)

    # It went round by the broker's own doing, and the broker counted.
    first, second = nfe.taken("rejected", 2)
    seen = [dict(one.properties.headers or {}) for one in (first, second)]
    assert not [name for headers in seen for name in headers if name.startswith("x-redrive")]  # nobody else did
    deaths = [
        {(death["queue"], death["reason"]): (death["count"], death["exchange"]) for death in headers["x-death"]}
        for headers in seen
    ]
    assert deaths[0] == {(MAIN, "rejected"): (1, "sagnus.nfe.events")}
    assert deaths[1][RETRY, "expired"] == (1, "sagnus.nfe.events")
    assert deaths[1][MAIN, "rejected"] == (2, "sagnus.nfe.events")
    assert {first.body, second.body} == {envelope}
    assert nfe.held("rejected") == 0
    assert {nfe.held(MAIN), nfe.held(RETRY)} == {0}

    async def look(connection: Connection) -> None:
        dead = await connection.get(DLQ)
        assert dead is not None
        headers = dict(dead.properties.headers or {})
        assert (dead.exchange, dead.routing_key) == ("sagnus.nfe.events", "nfe.event.dlq")  # published, not rejected
        assert dead.body == envelope
        assert (headers["x-redrive-exchange"], headers["x-redrive-routing-key"]) == ("sagnus.nfe.events", "nfe.event")
        dead.nack(requeue=True)
        await connection.delete_queue("rejected")

    nfe.do(look)
    assert len(nfe.inbox()) == 1  # what failed was not processed
    assert nfe.xml(chave) is None
    return chave


def what_is_mended_is_driven_again(nfe: Nfe, chave: str) -> None:
    (nfe.stack.folder / "away").rename(nfe.volume)

    done = nfe.run("redrive", "dlq", "redrive", DLQ, "--app", "examples.nfe.app:app", "--yes")

    assert done.returncode == 0, done.stderr
    xml = nfe.until(lambda: nfe.xml(chave))
    assert ET.fromstring(xml)[0].attrib["Id"] == f"NFe{chave}"
    assert nfe.held(DLQ) == 0
    assert len(nfe.inbox()) == 2


def what_cannot_be_mended_by_waiting_does_not_wait(nfe: Nfe, worker: Program) -> None:
    """Two invoices come to harm while their XML cannot be stored: the next attempt finds that out, and is the last."""
    nfe.volume.rename(nfe.stack.folder / "away")
    lost, broken = nfe.emit(44), nfe.emit(45)
    nfe.until(lambda: all(entries(worker, outcome="retried", correlationId=chave) for chave in (lost, broken)))
    nfe.change("DELETE FROM nfe WHERE chave = :chave", chave=lost)
    nfe.change("UPDATE nfe SET documento = '{}' WHERE chave = :chave", chave=broken)
    (nfe.stack.folder / "away").rename(nfe.volume)

    nfe.until(lambda: len(entries(worker, outcome="parked")) == 3)
    for chave, reason, error in ((lost, "requested", f"there is no invoice {lost}"), (broken, "permanent", "Nota")):
        (told,) = entries(worker, outcome="parked", correlationId=chave)
        assert told["reason"] == reason
        assert told["attempt"] in (2, 3)
        assert error in told["error"]
    assert nfe.held(DLQ) == 2


@says("atomic", "apart", "publishing", "variables", "declare")
def test_an_event_is_as_certain_as_its_invoice(nfe: Nfe) -> None:
    nobody = f"amqp://127.0.0.1:{free_port()}/"  # the API needs no broker
    with nfe.running("api", **WORKER, REDRIVE_BROKER=nobody) as api, nfe.running("relay", **WORKER) as relay:
        nfe.until(nfe.answers)
        relay.wait_for("nfe publishes nfe_outbox_event")  # it came first, so it has made the topology

        chave = nfe.emit(1)
        assert nfe.xml(chave) is None  # that is somebody else's work
        assert nfe.client.get(f"/nfe/{chave}").json()["valor_total"] == "62.00"
        refused = nfe.client.post("/nfe", json=nota(1))
        assert (refused.status_code, "number 1 of series 1 before" in refused.text) == (409, True)
        assert nfe.client.post("/nfe", json=nota(2, itens=[])).status_code == 422
        unknown = make_chave(state="35", at=MOMENT, cnpj="12345678000195", series=1, number=9, code=1)
        assert nfe.client.get(f"/nfe/{unknown}").status_code == 404
        assert nfe.client.get(f"/nfe/{unknown[:-1]}{(int(unknown[-1]) + 1) % 10}").status_code == 422
        nfe.until(lambda: len(nfe.published()) == 1)
        assert len(nfe.outbox()) == 1  # rolled back: it never was

        # What cannot be published is tried again by the relay, for as long as it takes to mend it.
        nfe.do(lambda connection: connection.unbind_queue(MAIN, "sagnus.nfe.events", "nfe.event"))
        nfe.emit(2)
        nfe.until(lambda: nfe.outbox()[1].attempts >= 1)
        assert "no queue is bound for it" in nfe.outbox()[1].last_error
        nfe.do(lambda connection: connection.bind_queue(MAIN, "sagnus.nfe.events", "nfe.event"))
        nfe.until(lambda: len(nfe.published()) == 2)

        # Everybody dies after the commit and before the publish.
        os.kill(relay.process.pid, signal.SIGSTOP)
        nfe.emit(3)
        api.kill()
        relay.kill()
    assert [row.state for row in nfe.outbox()] == [RowState.PUBLISHED, RowState.PUBLISHED, RowState.PENDING]

    # What is there needs no declaring.
    with nfe.running("relay", log="relay-again", **WORKER, **NO_DECLARING):
        nfe.until(lambda: len(nfe.published()) == 3)
        delivered = nfe.taken(MAIN, 3)
        assert nfe.held(MAIN) == 0
    assert sorted(one.body for one in delivered) == sorted(nfe.published())
    assert [json.loads(one.body)["payload"]["numero"] for one in delivered] == [1, 2, 3]
    assert [one.properties.message_id for one in delivered] == [row.event_id for row in nfe.outbox()]


@says("local", "listener")
def test_with_the_transport_local_the_listener_makes_the_xml_and_rabbitmq_hears_nothing(nfe: Nfe) -> None:
    with nfe.running("api") as program:  # without a flag
        program.wait_for("NfeEmitidaToXmlListener is on: this process makes the XML \\(LOCAL\\)")
        if nfe.stack.broker is not None:
            program.wait_for("the outbox's transport is LOCAL: .*; amqp://.* is not used")
        nfe.until(nfe.answers)
        chave = nfe.emit(42)
        the_xml_says_what_was_emitted(nfe.until(lambda: nfe.xml(chave)), chave)
        nfe.until(lambda: nfe.inbox() == [row.event_id for row in nfe.outbox()])
        assert stored(program) == [chave]
    if nfe.stack.broker is not None:
        assert nfe.stack.data.exists()

        async def look() -> bool:
            async with nfe.stack.connection() as connection:
                return await connection.exchange_exists("sagnus.nfe.events")

        assert not asyncio.run(look())


@says("listener", "variables")
def test_with_rabbit_and_no_worker_the_listener_makes_it(nfe: Nfe) -> None:
    with nfe.running(None, **RABBIT) as program:
        program.wait_for("NfeEmitidaToXmlListener is on: this process makes the XML \\(RABBIT\\)")
        nfe.until(nfe.answers)
        chave = nfe.emit(42)
        nfe.until(lambda: nfe.xml(chave))
        nfe.until(lambda: nfe.held(MAIN) == 0)  # it went by there
        assert stored(program) == [chave]


def test_a_worker_that_is_not_enabled_does_not_start() -> None:
    refused = CliRunner().invoke(main, ["--only", "worker"])

    assert (refused.exit_code, "sagnus.nfe.worker.enabled=false: the listener" in refused.output) == (2, True)


@says("rabbit", "declare", "exchange", "main", "retry", "ttl", "dlq", "variables")
def test_the_topology_is_declared_exactly_or_not_at_all(nfe: Nfe) -> None:
    lacking = nfe.run("examples.nfe", "--only", "worker", **WORKER, **NO_DECLARING)
    assert lacking.returncode == 4, lacking.stderr
    lines = [line.strip(" -") for line in lacking.stderr.splitlines() if line.startswith("  - ")]
    assert sorted(lines) == sorted(
        ["exchange sagnus.nfe.events (direct)", *(f"queue {queue}" for queue in (MAIN, RETRY, DLQ)),
         f"binding sagnus.nfe.events → {MAIN} [nfe.event]", f"binding sagnus.nfe.events → {RETRY} [nfe.event.retry]",
         f"binding sagnus.nfe.events → {DLQ} [nfe.event.dlq]"]
    )  # fmt: skip
    assert compared(nfe) == {Action.CREATE}

    with nfe.running("worker", **WORKER) as worker:
        worker.wait_for("nfe is working on")
        assert compared(nfe) == {Action.UNCHANGED}  # all of it, and nothing more


def compared(nfe: Nfe) -> set[Action]:
    """What is there, with the text's topology and the test's TTL."""
    topology = system("nfe")
    (queue,) = topology.queues
    assert queue.retry is not None
    wanted = replace(topology, queues=[replace(queue, retry=replace(queue.retry, attempts=3, delay="300ms"))])

    async def look() -> set[Action]:
        async with nfe.stack.connection() as connection:
            held = await inspect_broker(connection, wanted, nfe.stack.management)
            assert held.complete
            return {step.action for step in make_plan(expand(wanted, held.server), held).steps}

    return asyncio.run(look())


def test_every_statement_of_the_text_is_asserted() -> None:
    assert not says.unclaimed
