"""The child process of an admin server, which is killed before its Nth side effect; the next one lives.

    DIE_BEFORE=N DIED=FILE python -c "from crashes.programs.executing import main; main()"

Side effects are what others can see: the claim, the lock, what is recorded, what is published, acks, the audit. The
file says that one has died.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redrive.admin.executor import subprocess
from redrive.client.browser import QueueBrowser
from redrive.operations.audit_log import AuditLog
from redrive.operations.dlq_adapter import DlqAdapter
from redrive.operations.repository import OperationRepository

EFFECTS: tuple[tuple[type, str], ...] = (
    (OperationRepository, "take_over"),
    (OperationRepository, "save"),
    (DlqAdapter, "lock"),
    (DlqAdapter, "browse"),
    (DlqAdapter, "publish_many"),
    (QueueBrowser, "ack"),
    (QueueBrowser, "release"),
    (AuditLog, "write"),
)


def main() -> None:
    died = Path(os.environ["DIED"])
    if not died.exists():
        left = [int(os.environ["DIE_BEFORE"])]

        def mortal(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    died.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **options)

            return wrapped

        for owner, name in EFFECTS:
            setattr(owner, name, mortal(getattr(owner, name)))
    subprocess.main()
