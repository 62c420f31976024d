"""What is told of an invoice, and the envelope in which it travels.

{"eventId": "0198…", "eventType": "NfeEmitidaEvent", "aggregateType": "Nfe", "aggregateId": "3526…", "occurredAt": "…",
 "correlationId": "3526…", "payload": {"chave": "3526…", "serie": 1, "numero": 42, "valorTotal": "150.00", …}}
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from msgspec import Struct

NFE_EMITIDA = "NfeEmitidaEvent"


class NfeEmitidaEvent(Struct, rename="camel"):
    """An invoice was emitted. What it says in full is in the database, under its key."""

    chave: str
    cnpj_emitente: str
    serie: int
    numero: int
    valor_total: Decimal
    emitida_em: str


class Emitida(Struct, rename="camel"):
    """The envelope, as far as the worker reads it. Events of other types are not for it, and cannot be read as this."""

    event_id: str
    event_type: Literal["NfeEmitidaEvent"]
    payload: NfeEmitidaEvent
