"""Emitting an invoice: the row and its event, in the caller's one transaction. Either both are there, or neither."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta, timezone

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from examples.nfe.app import app, events
from examples.nfe.chave import make_chave
from examples.nfe.events import NFE_EMITIDA, NfeEmitidaEvent
from examples.nfe.nota import Nota
from examples.nfe.records import NFE
from redrive import Envelope

BRASILIA = timezone(timedelta(hours=-3))


async def emit(nota: Nota, session: AsyncSession) -> NfeEmitidaEvent:
    """Raises IntegrityError if the issuer has used that number in that series before."""
    at = datetime.now(BRASILIA)
    event = NfeEmitidaEvent(
        chave=_chave(nota, at),
        cnpj_emitente=nota.emitente.cnpj,
        serie=nota.serie,
        numero=nota.numero,
        valor_total=nota.valor_total,
        emitida_em=at.isoformat(timespec="seconds"),
    )
    envelope = Envelope("Nfe", event.chave)
    await app.publish(
        events, "nfe.event", event, session=session, type=NFE_EMITIDA, envelope=envelope, correlation_id=event.chave
    )
    row = {
        "chave": event.chave,
        "cnpj_emitente": event.cnpj_emitente,
        "serie": event.serie,
        "numero": event.numero,
        "emitida_em": event.emitida_em,
        "valor_centavos": int(event.valor_total * 100),
        "documento": nota.model_dump_json(),
    }
    await session.execute(sa.insert(NFE).values(row))
    return event


def _chave(nota: Nota, at: datetime) -> str:
    code = secrets.randbelow(10**8 - 1)
    return make_chave(
        state=nota.emitente.endereco.municipio[:2],
        at=at,
        cnpj=nota.emitente.cnpj,
        series=nota.serie,
        number=nota.numero,
        code=code if code != nota.numero else code + 1,  # the two must not be equal
    )
