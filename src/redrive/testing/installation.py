"""Where RabbitMQ is installed, and how its programs are run.

There are two kinds of installation. The system's own is run directly: `sbin/rabbitmq-server` of the versioned folder,
never the wrapper in `/usr/sbin`, which changes user and uses the system's cookie. Other versions live in a folder with
a whole small Debian in it (`tools/make_rabbitmq_root.sh`) and are run with that folder as their root.

A program in such a folder runs in a mount namespace of its own, in which the node's directory is mounted at the very
path it has outside. So no path needs translating, and nothing stays mounted: the mounts die with the process.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from redrive.testing.ports import LOOPBACK, free_port, is_open
from redrive.testing.processes import ServerProcess

# RabbitMQ's scripts need `erl` and the usual tools, also inside another root.
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])

_SBIN = (
    "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",  # Debian, Ubuntu, Fedora
    "opt/rabbitmq/sbin",  # the official image
    "opt/homebrew/opt/rabbitmq/sbin",  # macOS
    "usr/local/opt/rabbitmq/sbin",
)

# Arguments: the root, the directory to share, then the command. The folder's /tmp is hidden under an empty one, so
# that making the mount point for a directory below /tmp leaves no trace in the folder.
_ENTER = """
mount --rbind /proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/tmp"
mkdir -p "$1$2"
mount --bind "$2" "$1$2"
root=$1
shift 2
exec chroot "$root" "$@"
"""


def find_rabbitmq(root: Path | None = None) -> Path | None:
    """The `sbin` folder of the installed RabbitMQ, on this system or in the folder `root`; None when missing."""
    base = root or Path("/")
    found = (sbin for pattern in _SBIN for sbin in sorted(base.glob(pattern), reverse=True))
    return next((sbin for sbin in found if (sbin / "rabbitmq-server").exists()), None)


@dataclass(frozen=True)
class Installation:
    """A RabbitMQ that can be run."""

    sbin: Path
    root: Path | None = None

    @classmethod
    def find(cls, root: Path | None = None) -> "Installation":
        root = root.resolve() if root else None
        sbin = find_rabbitmq(root)
        if sbin is None:
            raise FileNotFoundError(f"no RabbitMQ under {root or '/'}: install rabbitmq-server")
        return cls(sbin, root)

    @cached_property
    def version(self) -> tuple[int, ...]:
        """(3, 10, 8), told by the name of the server's own plugin, which every package layout has."""
        rabbit = next(self.sbin.parent.glob("plugins/rabbit-[0-9]*"))
        digits = rabbit.name.removeprefix("rabbit-").removesuffix(".ez").split(".")
        return tuple(int(part) for part in digits if part.isdigit())

    def rabbitmq(self, program: str, arguments: Sequence[str], *, shared: Path) -> list[str]:
        """The command line of one of RabbitMQ's programs, which sees `shared` as its own folder."""
        sbin = Path("/") / self.sbin.relative_to(self.root) if self.root else self.sbin
        return self.command([str(sbin / program), *arguments], shared=shared)

    def command(self, command: Sequence[str], *, shared: Path) -> list[str]:
        if self.root is None:
            return list(command)
        # Without being root, a user namespace gives the right to mount and chroot where the kernel allows it.
        unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
        return [*unshare, "sh", "-ec", _ENTER, "enter", str(self.root), str(shared), *command]


class Epmd:
    """The Erlang port mapper and the cookie of one private node or cluster.

    Erlang nodes ask the epmd of the machine for each other's ports, and trust each other by a shared secret, the
    cookie. By default all nodes of a machine register at one epmd, on port 4369, which the first of them leaves
    running. A private node must do neither, so it starts its own.
    """

    def __init__(self, directory: Path, installation: Installation) -> None:
        self.directory = directory
        self.installation = installation
        self.port = free_port()
        self.cookie = secrets.token_hex(16)
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start it unless it runs. In the foreground, so that it stays our child; RabbitMQ would daemonise one."""
        if self._process is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        listen = ["epmd", "-port", str(self.port), "-address", LOOPBACK]
        command = self.installation.command(listen, shared=self.directory)
        log = self.directory / "epmd.log"
        self._process = ServerProcess(command, environment={"PATH": PATH}, log=log)
        self._process.wait_until(lambda: is_open(self.port), timeout=30)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
