"""The throwaway certificates convince a strict verifier, and only where they should."""

import socket
import ssl
import threading
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.support.tls import TLSFiles, make_certificates


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TLSFiles:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def handshake(server_side: TLSFiles, client: ssl.SSLContext, name: str) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Shake hands over a socket pair; both ends must be closed by the caller."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=server_side.ca)
    server.verify_mode = ssl.CERT_OPTIONAL
    server.load_cert_chain(server_side.server_certificate, server_side.server_key)
    here, there = socket.socketpair()
    accepted = server.wrap_socket(there, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=_shake, args=(accepted,))
    thread.start()
    try:
        return client.wrap_socket(here, server_hostname=name), accepted
    except BaseException:
        here.close()
        thread.join()
        accepted.close()
        raise
    finally:
        thread.join()


def _shake(accepted: ssl.SSLSocket) -> None:
    try:
        accepted.do_handshake()
    except OSError:
        accepted.close()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_the_server_is_trusted_by_those_who_know_the_authority(tls: TLSFiles, name: str) -> None:
    strict = tls.client_context()
    strict.verify_flags |= ssl.VERIFY_X509_STRICT

    connected, accepted = handshake(tls, strict, name)

    with connected, accepted:
        assert ("subject", ((("commonName", "guest"),),)) in (accepted.getpeercert() or {}).items()


def test_the_server_is_not_trusted_by_anybody_else(tls: TLSFiles) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls, ssl.create_default_context(), "localhost")


def test_the_server_is_not_trusted_under_another_name(tls: TLSFiles) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="broker\\.example"):
        handshake(tls, tls.client_context(), "broker.example")


def test_another_authority_vouches_for_nothing_of_ours(tls: TLSFiles, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls, make_certificates(tmp_path).client_context(), "localhost")


def test_keys_are_for_their_owner_only(tls: TLSFiles) -> None:
    assert tls.server_key.stat().st_mode & 0o077 == 0
    assert tls.client_key.stat().st_mode & 0o077 == 0


def test_the_files_are_told_as_parts_of_a_url(tls: TLSFiles) -> None:
    assert parse_qs(tls.trust_query) == {"cacertfile": [str(tls.ca)]}
    assert parse_qs(tls.client_query).keys() == {"cacertfile", "certfile", "keyfile"}
