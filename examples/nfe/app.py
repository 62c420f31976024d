"""The application: one exchange, one queue, and who makes XML of the invoices that were emitted.

    POST /nfe ─ one transaction ─> nfe, nfe_outbox_event
                                            │ relay
                                            v  nfe.event
                                    sagnus.nfe.events ──> sagnus.nfe.events.q ──> generate_xml ──> folder
                                      ^   ^                        │ rejected           │ ack, with nfe_inbox_processed
                                      │   │ nfe.event.retry        v                    │
                                      │   └────────────── (dead-letter exchange)        │ maxDeliveries exceeded
                                      │ nfe.event                                       v nfe.event.dlq
                                      └─ sagnus.nfe.events.retry.q (TTL)        sagnus.nfe.events.dlq

With the transport LOCAL the same goes through the broker in the API's own process.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from examples.nfe import migrations
from examples.nfe.events import Emitida
from examples.nfe.layout import make_xml
from examples.nfe.nota import Nota
from examples.nfe.records import NFE
from examples.nfe.settings import load
from examples.nfe.storage import XmlStorage
from redrive import App, InboxNames, InboxPolicy, Naming, OutboxMode, OutboxNames, OutboxPolicy, Park, Retry

log = logging.getLogger("sagnus.nfe")

settings = load()
EXCHANGE = "sagnus.nfe.events"

app = App(
    "nfe",
    naming=Naming(
        retry_exchange=EXCHANGE,
        retry_queue="sagnus.nfe.events.retry.q",
        retry_key="nfe.event.retry",
        back_exchange=EXCHANGE,
        back_key="nfe.event",
        dlq_exchange=EXCHANGE,
        dlq_queue="sagnus.nfe.events.dlq",
        dlq_key="nfe.event.dlq",
    ),
    # What the API's own broker needs nobody else could make.
    declare=settings.auto_declare or settings.transport is OutboxMode.LOCAL,
    outbox=OutboxNames("nfe_outbox_event", {"message_id": "event_id", "body": "payload"}),
    outbox_policy=OutboxPolicy(transport=settings.transport, keep="7d"),
    inbox_table=InboxNames("nfe_inbox_processed", {"message_id": "event_id"}),
)
events = app.exchange(EXCHANGE, "direct")
storage = XmlStorage(settings.xml_folder or app.data / "nfe")


@app.on_start
def prepare() -> None:
    """Create the tables, ours and Redrive's, and the folder if it is ours, whichever part starts first."""
    migrations.migrate(app.database)
    app.upgrade_database()
    if settings.xml_folder is None:
        storage.folder.mkdir(parents=True, exist_ok=True)


@app.consumer(
    "sagnus.nfe.events.q",
    bind=events.on("nfe.event"),
    retry=Retry(attempts=settings.max_deliveries, delay=f"{settings.retry_ttl_ms}ms", via="reject"),
    inbox=InboxPolicy(key=lambda event, _: event.event_id),
    concurrency=4,
)
async def generate_xml(event: Emitida, session: AsyncSession) -> None:
    """NfeEmitidaEvent: make the XML, and keep it.

    The file is there before the row says so. Who dies in between comes again, and writes the same bytes once more.
    """
    chave = event.payload.chave
    row = (await session.execute(sa.select(NFE).where(NFE.c.chave == chave))).mappings().first()
    if row is None:
        raise Park(f"there is no invoice {chave}")  # it was committed with its event: waiting will not bring it back
    nota = Nota.model_validate_json(row["documento"])
    xml = make_xml(nota, chave=chave, at=row["emitida_em"])
    await asyncio.to_thread(storage.put, chave, xml)
    digest = hashlib.sha256(xml).hexdigest()
    await session.execute(sa.update(NFE).where(NFE.c.chave == chave).values(xml_sha256=digest))
    log.info("the XML of %s is stored: %d bytes", chave, len(xml))
