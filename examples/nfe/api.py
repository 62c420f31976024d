"""The API: invoices are emitted, and one can ask for them and for their XML.

uvicorn examples.nfe.api:api        beside it: redrive outbox relay examples.nfe.app:app
                                               redrive worker examples.nfe.app:app
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import FastAPI, HTTPException, Response
from fastapi import Path as InPath
from sqlalchemy.exc import IntegrityError

from examples.nfe.app import app, settings, storage
from examples.nfe.chave import is_chave
from examples.nfe.emission import emit
from examples.nfe.listener import NfeEmitidaToXmlListener
from examples.nfe.nota import Nota
from examples.nfe.records import NFE
from redrive.integrations.fastapi import Lifespan, Transaction, explain_errors

Chave = Annotated[str, InPath(pattern="^[0-9]{44}$")]

listener = NfeEmitidaToXmlListener(app, worker_enabled=settings.worker_enabled)


def make_api(lifespan: Lifespan) -> FastAPI:
    api = FastAPI(title="NF-e", lifespan=lifespan)
    explain_errors(api)
    api.post("/nfe", status_code=201)(issue)
    api.get("/nfe/{chave}")(show)
    api.get("/nfe/{chave}/xml")(show_xml)
    return api


async def issue(nota: Nota, session: Transaction, response: Response) -> dict[str, Any]:
    """201: the invoice is committed, and with it the event from which its XML will be made."""
    try:
        emitted = await emit(nota, session)
    except IntegrityError:
        raise HTTPException(
            409, f"{nota.emitente.cnpj} has emitted number {nota.numero} of series {nota.serie} before"
        ) from None
    response.headers["Location"] = f"/nfe/{emitted.chave}"
    return {"chave": emitted.chave, "emitida_em": emitted.emitida_em, "valor_total": f"{emitted.valor_total:.2f}"}


def show(chave: Chave) -> dict[str, Any]:
    row = _find(chave)
    return {
        "chave": chave,
        "serie": row["serie"],
        "numero": row["numero"],
        "emitida_em": row["emitida_em"],
        "valor_total": f"{Decimal(row['valor_centavos']) / 100:.2f}",
        "xml_sha256": row["xml_sha256"],
    }


def show_xml(chave: Chave) -> Response:
    if _find(chave)["xml_sha256"] is None:
        raise HTTPException(404, "there is no XML yet")
    try:
        return Response(storage.get(chave), media_type="application/xml")
    except OSError:
        raise HTTPException(503, "the XML cannot be reached now", {"Retry-After": "5"}) from None


def _find(chave: str) -> sa.RowMapping:
    if not is_chave(chave):
        raise HTTPException(422, "its check digit says that this is not the key of an invoice")
    with app.database.reading_connection() as connection:
        found = connection.execute(sa.select(NFE).where(NFE.c.chave == chave)).mappings().first()
    if found is None:
        raise HTTPException(404, "there is no such invoice")
    return found


api = make_api(listener.lifespan())
