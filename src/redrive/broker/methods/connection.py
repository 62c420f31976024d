"""Class 10: connection. The handshake, as the broker leads it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redrive.broker.errors import AmqpError, access_refused
from redrive.errors import LocalProtocolError, ReplyCode
from redrive.protocol.handshake import PlainAuth, read_plain
from redrive.wire import methods as m
from redrive.wire.method import Method
from redrive.wire.values import read_table

if TYPE_CHECKING:
    from redrive.broker.session import Session

log = logging.getLogger("redrive.broker")


def handle(session: Session, method: Method) -> None:
    match method:
        case m.ConnectionStartOk():
            _authenticate(session, method)
        case m.ConnectionTuneOk():
            pass  # the conversation has noted it
        case m.ConnectionOpen():
            _open(session, method)
        case m.ConnectionClose():
            session.linger()
        case m.ConnectionCloseOk():
            session.finish()
        case m.ConnectionUpdateSecret():
            session.send(0, m.ConnectionUpdateSecretOk())
        case _:
            raise LocalProtocolError(f"{method.name} was let through to the broker")


def start(session: Session) -> None:
    properties = session.broker.properties()
    session.send(0, m.ConnectionStart(server_properties=properties, mechanisms=b"PLAIN AMQPLAIN"))


def _authenticate(session: Session, answer: m.ConnectionStartOk) -> None:
    credentials = _credentials(answer)
    capabilities = answer.client_properties.get("capabilities")
    if not isinstance(capabilities, dict):
        capabilities = {}
    if credentials is None or not session.broker.accepts(credentials):
        reads_close = capabilities.get("authentication_failure_close") is True
        _refuse_login(session, answer.mechanism, reads_close=reads_close)
        return
    session.user = credentials.username
    session.notifies_blocked = capabilities.get("connection.blocked") is True
    limits = session.broker.tuning
    tune = m.ConnectionTune(channel_max=limits.channel_max, frame_max=limits.frame_max, heartbeat=limits.heartbeat)
    session.send(0, tune)


def _refuse_login(session: Session, mechanism: str, *, reads_close: bool) -> None:
    """Only a client that announced it can read connection.close here; for others the socket is closed."""
    refusal = access_refused(
        f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
    )
    log.warning("%r: %s", session, refusal)
    if reads_close:
        session.close(refusal.code, str(refusal))
    else:
        session.finish()


def _credentials(answer: m.ConnectionStartOk) -> PlainAuth | None:
    if answer.mechanism == "PLAIN":
        return read_plain(answer.response)
    if answer.mechanism == "AMQPLAIN":
        return _read_amqplain(answer.response)
    return None


def _read_amqplain(response: bytes) -> PlainAuth | None:
    """RabbitMQ's own mechanism: a table of LOGIN and PASSWORD, without its length."""
    length = len(response).to_bytes(4, "big")
    table = read_table(length + response, 0, len(response) + 4)[0]
    login, password = table.get("LOGIN"), table.get("PASSWORD")
    return PlainAuth(login, password) if isinstance(login, str) and isinstance(password, str) else None


def _open(session: Session, method: m.ConnectionOpen) -> None:
    vhost = session.broker.vhosts.get(method.virtual_host)
    if vhost is None:
        raise AmqpError(ReplyCode.NOT_ALLOWED, f"vhost {method.virtual_host} not found")
    session.open(vhost)
