"""Throwaway certificates, made by the `openssl` command, and a RabbitMQ node that uses them.

The server's certificate is for `localhost` and 127.0.0.1. The client's common name is `guest`, so that a RabbitMQ with
`ssl_cert_login_from = common_name` logs it in as its default user (the EXTERNAL mechanism). The extensions are those
that strict verification (the default from Python 3.13 on) insists upon.
"""

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from redrive.testing.ports import LOOPBACK, free_port, is_open
from redrive.testing.rabbitmq import Endpoint, RabbitMQ

_AUTHORITY = """\
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
_LEAF = """\
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""
_SERVER = _LEAF + "extendedKeyUsage = serverAuth\nsubjectAltName = DNS:localhost, IP:127.0.0.1\n"
_CLIENT = _LEAF + "extendedKeyUsage = clientAuth\n"


@dataclass(frozen=True)
class TLSFiles:
    """Paths of PEM files: whom to trust, and what server and client show each other."""

    ca: Path
    server_certificate: Path
    server_key: Path
    client_certificate: Path
    client_key: Path

    @property
    def trust_query(self) -> str:
        """URL query of a client that verifies the server and stays anonymous itself."""
        return urlencode({"cacertfile": self.ca})

    @property
    def client_query(self) -> str:
        """URL query of a client that also shows its own certificate."""
        own = {"certfile": self.client_certificate, "keyfile": self.client_key}
        return urlencode({"cacertfile": self.ca, **own})

    def client_context(self) -> ssl.SSLContext:
        """What a client of another library needs to connect, its own certificate included."""
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.client_certificate, self.client_key)
        return context


def make_certificates(directory: Path) -> TLSFiles:
    """Make a new authority in `directory`, and a server and a client certificate signed by it."""
    directory.mkdir(parents=True, exist_ok=True)
    _make(directory, "ca", "Redrive throwaway authority", _AUTHORITY, signed_by=None)
    _make(directory, "server", "localhost", _SERVER, signed_by="ca")
    _make(directory, "client", "guest", _CLIENT, signed_by="ca")
    return TLSFiles(
        ca=directory / "ca.pem",
        server_certificate=directory / "server.pem",
        server_key=directory / "server.key",
        client_certificate=directory / "client.pem",
        client_key=directory / "client.key",
    )


def _make(directory: Path, name: str, subject: str, extensions: str, *, signed_by: str | None) -> None:
    (directory / f"{name}.ext").write_text(extensions)
    _openssl(directory, f"ecparam -name prime256v1 -genkey -noout -out {name}.key")
    (directory / f"{name}.key").chmod(0o600)
    _openssl(directory, f"req -new -key {name}.key -out {name}.csr -subj", f"/CN={subject}")
    signer = f"-CA {signed_by}.pem -CAkey {signed_by}.key -CAcreateserial" if signed_by else f"-signkey {name}.key"
    _openssl(directory, f"x509 -req -in {name}.csr -out {name}.pem -days 2 -sha256 -extfile {name}.ext {signer}")


def _openssl(directory: Path, arguments: str, *more: str) -> None:
    command = ["openssl", *arguments.split(), *more]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")


@dataclass(eq=False, repr=False, kw_only=True)
class TLSEndpoint(Endpoint):
    """The address of a node that serves TLS as well."""

    tls_port: int
    tls: TLSFiles

    @property
    def tls_url(self) -> str:
        """Without query: add `?` and one of the queries of `TLSFiles` to say whom to trust."""
        return f"amqps://guest:guest@localhost:{self.tls_port}/%2F"


class TLSRabbitMQ(TLSEndpoint, RabbitMQ):
    """A private node that serves TLS as well."""

    def __init__(self, directory: Path, *, tls: TLSFiles, **options: Any) -> None:
        self.tls = tls
        self.tls_port = free_port()
        RabbitMQ.__init__(self, directory, **options)

    def _config_lines(self) -> list[str]:
        """Copy the files: a node run from another root sees its own directory only."""
        files = {"cacertfile": self.tls.ca, "certfile": self.tls.server_certificate, "keyfile": self.tls.server_key}
        copies = {option: shutil.copy(path, self.directory / option) for option, path in files.items()}
        return [
            *super()._config_lines(),
            f"listeners.ssl.1 = {LOOPBACK}:{self.tls_port}",
            *(f"ssl_options.{option} = {path}" for option, path in copies.items()),
            "ssl_options.verify = verify_peer",
            "ssl_options.fail_if_no_peer_cert = false",
        ]

    def _serves(self) -> bool:
        return super()._serves() and is_open(self.tls_port)
