"""The application: one exchange, two queues, and one filter for whatever goes wrong in them.

    minha.chave ─> minha.fila ─ charge ─> the gateway ─ minha.chave.recibo ─> recibos ─ send_receipt ─> receipts
                       │  ^                                                     │  ^
                 raise │  │ x-delay                                       raise │  │ x-delay
                       v  │                                                     v  │
                     direct.delayed, or the ladder of delays where the broker has no such exchange
                       │                                                        │
          Nack(false)  v                                                        v
          dlx.exchange ─> minha.fila.dlq                          dlx.exchange ─> recibos.dlq

The filter is said once for the application, and `charge` has it without a word. `send_receipt` has one of its own: for
it an unknown customer is no reason to try again, and its waits are fixed whatever `RETRY_BACKOFF` is.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from examples.errorfilter import settings
from examples.errorfilter.exceptions import NotFoundException
from examples.errorfilter.gateway import Gateway
from examples.errorfilter.messages import Charge, Receipt
from examples.errorfilter.records import RECEIPTS, metadata
from redrive import App, InboxPolicy, Naming, Router

everywhere = settings.FILTER
for_receipts = replace(everywhere, non_retryable=(*everywhere.non_retryable, NotFoundException), exponential=False)

app = App(
    "errorfilter",
    naming=Naming(
        delayed_exchange="direct.delayed",
        delayed_key="",  # the one that the message had
        dlq_exchange="dlx.exchange",
        dlq_queue="{queue}.dlq",
        dlq_key="{queue}.dlq",
    ),
    defaults=everywhere.options,
    patience="5s",
)
exchange = app.exchange("minha.exchange", "direct")
gateway = Gateway(settings.GATEWAY_URL or "http://{}:{}".format(*settings.SANDBOX), settings.GATEWAY_TIMEOUT)

# The exception: its consumer has a filter of its own.
receipts = Router(defaults=for_receipts.options)


@app.on_start
def prepare() -> None:
    """Create the tables, Redrive's and ours, whichever part starts first."""
    app.upgrade_database()
    app.database.create_tables(metadata)


# Both depend on the gateway: when it fails, both pause.


@app.consumer(
    "minha.fila",
    bind=exchange.on("minha.chave"),
    concurrency=4,
    breaker=settings.BREAKER,
    depends_on="gateway",
    timeout=3 * settings.GATEWAY_TIMEOUT,
)
async def charge(order: Charge) -> None:
    """Have somebody pay. Whenever this comes again, the gateway knows it by the charge's id, and nobody pays twice."""
    order.check()
    payment = await asyncio.to_thread(gateway.charge, order)
    receipt = Receipt(order.id, order.customer, order.amount, order.currency, payment)
    await app.publish(exchange, "minha.chave.recibo", receipt, type="Receipt")


@receipts.consumer(
    "recibos",
    bind=exchange.on("minha.chave.recibo"),
    inbox=InboxPolicy(key=lambda receipt, _: receipt.charge),
    breaker=settings.BREAKER,
    depends_on="gateway",
    timeout=3 * settings.GATEWAY_TIMEOUT,
)
async def send_receipt(receipt: Receipt, session: AsyncSession) -> None:
    """One receipt for each charge, though the message may come twice: its inbox knows the charge."""
    address = await asyncio.to_thread(gateway.address_of, receipt.customer)
    sent = {"charge": receipt.charge, "payment": receipt.payment, "amount": receipt.amount}
    await session.execute(sa.insert(RECEIPTS).values(**sent, currency=receipt.currency, address=address))


app.include(receipts)
