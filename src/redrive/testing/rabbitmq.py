"""A RabbitMQ node that belongs to a test: started, stopped, killed and thrown away by it.

A node shares nothing with the machine's own RabbitMQ nor with other tests' nodes. What makes it private:

- ports of its own, all on loopback, kept over restarts: AMQP, Erlang distribution, and where wanted management;
- an epmd of its own (the Erlang port mapper; by default all nodes of a machine register at one, on port 4369);
- a HOME of its own, where Erlang looks for the cookie, which must be readable by its owner only;
- every directory and file RabbitMQ would look up under /etc/rabbitmq or /var/lib/rabbitmq set by the environment,
  including `RABBITMQ_CONF_ENV_FILE`, named and missing on purpose.

`detached` in the environment makes RabbitMQ's start script replace itself by the Erlang VM, so that the process
started is the VM and `kill -9` hits the broker, not a shell in front of it.
"""

import base64
import http.client
import json
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from redrive.testing.installation import PATH, Epmd, Installation
from redrive.testing.ports import LOOPBACK, free_port
from redrive.testing.processes import PrivateServer, ServerFailed, ServerProcess, tail

_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_METHOD_FRAME = b"\x01"
_ON_LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"
_AUTHORIZATION = "Basic " + base64.b64encode(b"guest:guest").decode()


class ApiError(RuntimeError):
    """The management API answered with an error; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False, repr=False)
class Endpoint:
    """The address of a running node and its management API. `version` is (3, 10, 8).

    This is all that a test may know about a node it shares with others: it can connect and make virtual hosts, but not
    stop the node. A node of the test's own is a `RabbitMQ`.
    """

    name: str
    version: tuple[int, ...]
    port: int
    management_port: int | None = None

    @property
    def url(self) -> str:
        """The AMQP URL of the default virtual host."""
        return self.url_for("/")

    def url_for(self, vhost: str) -> str:
        """Return the AMQP URL of a virtual host."""
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/{quote(vhost, safe='')}"

    def api(self, path: str, method: str = "GET", body: object = None) -> Any:
        """Ask the management API: `api("/queues/%2F")`. Returns the decoded JSON, None when there is none."""
        if self.management_port is None:
            raise RuntimeError(f"{self.name} was made without management: RabbitMQ(..., management=True)")
        connection = http.client.HTTPConnection(LOOPBACK, self.management_port, timeout=30)
        try:
            headers = {"Authorization": _AUTHORIZATION, "Content-Type": "application/json"}
            connection.request(method, f"/api{path}", None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            said = answer.decode(errors="replace")
            raise ApiError(response.status, f"{method} /api{path}: {response.status} {said}")
        return json.loads(answer) if answer else None

    def add_vhost(self, vhost: str) -> None:
        """Make a virtual host in which guest may do everything (the management API grants that to its maker)."""
        self.api(f"/vhosts/{quote(vhost, safe='')}", "PUT", {})

    def delete_vhost(self, vhost: str) -> None:
        """Delete a virtual host with everything in it."""
        self.api(f"/vhosts/{quote(vhost, safe='')}", "DELETE")

    def __repr__(self) -> str:
        version = ".".join(map(str, self.version))
        return f"<Endpoint RabbitMQ {version} {self.name}@localhost port={self.port}>"


class RabbitMQ(PrivateServer, Endpoint):
    """A private node: `<RabbitMQ 3.10.8 redrive@localhost port=23456 RUNNING pid=4711>`.

    It is stopped by SIGTERM, which the Erlang VM takes as `init:stop()`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "redrive",
        root: Path | None = None,
        plugins: Sequence[str] = (),
        management: bool = False,
        config: str = "",
        epmd: Epmd | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.installation = Installation.find(root)
        self.config = config
        self.plugins = [*plugins, *(["rabbitmq_management"] if management else [])]
        self._epmd = epmd or Epmd(self.directory, self.installation)
        self._owns_epmd = epmd is None
        self.distribution_port = free_port()
        Endpoint.__init__(
            self,
            name=name,
            version=self.installation.version,
            port=free_port(),
            management_port=free_port() if management else None,
        )

    # -- life -----------------------------------------------------------------------------------------------

    def start(self, *, timeout: float = 120) -> None:
        """Start the node and return when it serves. Data of an earlier life in the directory are still there."""
        self.launch()
        self.wait_until_ready(timeout=timeout)

    def launch(self) -> None:
        """Start the node and do not wait: for nodes that need each other to become ready."""
        if self.running:
            raise RuntimeError(f"{self!r} is already running")
        self._write_files()
        self._epmd.start()
        command = self.installation.rabbitmq("rabbitmq-server", [], shared=self.directory)
        self._process = ServerProcess(command, environment=self.environment(), log=self._console_log)

    def wait_until_ready(self, *, timeout: float = 120) -> None:
        """Wait until the node accepts connections."""
        if self._process is None:
            raise RuntimeError(f"{self!r} was not started")
        try:
            self._process.wait_until(self._serves, timeout=timeout)
        except ServerFailed as failed:
            self.kill()
            logged = tail(self._console_log, self.log)
            raise ServerFailed(f"RabbitMQ did not start in {self.directory}: {failed}\n{logged}") from None

    def discard(self) -> None:
        self.kill()
        if self._owns_epmd:
            self._epmd.end()
        super().discard()

    def __repr__(self) -> str:
        version = ".".join(map(str, self.version))
        return f"<RabbitMQ {version} {self.name}@localhost port={self.port} {self.state}>"

    # -- use ------------------------------------------------------------------------------------------------

    @property
    def log(self) -> Path:
        """Return what the node has logged."""
        return self.directory / "log" / "broker.log"

    def ctl(self, *arguments: str, tool: str = "rabbitmqctl", timeout: float = 120) -> str:
        """Run `rabbitmqctl` (or another of RabbitMQ's tools) on the node and return what it printed."""
        address = ["--node", f"{self.name}@localhost", *arguments]
        done = subprocess.run(
            self.installation.rabbitmq(tool, address, shared=self.directory),
            env=self.environment(),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{tool} {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def add_vhost(self, vhost: str) -> None:
        """Make a virtual host for guest: through the management API at once, without it by the slow tool."""
        if self.management_port is not None:
            super().add_vhost(vhost)
            return
        self.ctl("add_vhost", vhost)
        self.ctl("set_permissions", "--vhost", vhost, "guest", ".*", ".*", ".*")

    def delete_vhost(self, vhost: str) -> None:
        """Delete a virtual host with everything in it."""
        if self.management_port is not None:
            super().delete_vhost(vhost)
        else:
            self.ctl("delete_vhost", vhost)

    # -- set-up ---------------------------------------------------------------------------------------------

    @property
    def _console_log(self) -> Path:
        return self.directory / "console.log"

    def environment(self) -> dict[str, str]:
        """Everything the server and its tools look up, so that nothing is taken from the machine."""
        at = self.directory
        return {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "HOME": str(at),
            "RABBITMQ_NODENAME": f"{self.name}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_MNESIA_BASE": str(at / "data"),
            "RABBITMQ_LOG_BASE": str(at / "log"),
            "RABBITMQ_PID_FILE": str(at / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(at / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(at / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(at / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(at / "there-is-no-such-file"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(at / "generated"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(at / "feature_flags"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ON_LOOPBACK,
            "RABBITMQ_CTL_ERL_ARGS": _ON_LOOPBACK,
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self._epmd.port),
            "ERL_CRASH_DUMP": str(at / "erl_crash.dump"),
            "detached": "1",
        }

    def _write_files(self) -> None:
        for folder in ("data", "log", "generated"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        cookie = self.directory / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(0o600)
            cookie.write_text(self._epmd.cookie)
            cookie.chmod(0o400)
        (self.directory / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        (self.directory / "rabbitmq.conf").write_text("\n".join(self._config_lines()) + "\n")

    def _config_lines(self) -> list[str]:
        lines = [
            f"listeners.tcp.1 = {LOOPBACK}:{self.port}",
            "log.file = broker.log",
            "log.file.level = info",
            "log.console = false",
            "disk_free_limit.absolute = 50MB",
            "vm_memory_high_watermark.absolute = 1GB",
        ]
        if self.management_port is not None:
            lines += [f"management.tcp.ip = {LOOPBACK}", f"management.tcp.port = {self.management_port}"]
        return [*lines, self.config]

    def _serves(self) -> bool:
        """The other listeners open a little after the first one: ready is when all of them answer."""
        return _speaks_amqp(self.port) and (self.management_port is None or self._manages())

    def _manages(self) -> bool:
        try:
            self.api("/overview")
        except (OSError, http.client.HTTPException, ApiError):
            return False
        return True


def _speaks_amqp(port: int) -> bool:
    """A node that serves answers the protocol header with `connection.start`, a method frame."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
            connection.settimeout(5)
            connection.sendall(_PROTOCOL_HEADER)
            return connection.recv(1) == _METHOD_FRAME
    except OSError:
        return False
