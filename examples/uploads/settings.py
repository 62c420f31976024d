"""What can be set from outside, and what it is otherwise."""

import os
from pathlib import Path

from examples.variables import number, seconds
from redrive import environment

RETRY_TTL_MS = number("RETRY_TTL_MS", 15_000)
MAX_ATTEMPTS = 3
FOLDER = Path(os.environ.get("UPLOADS_FOLDER", environment.data() / "uploads"))
LARGEST_UPLOAD = 20 * 1024 * 1024

# Who wants to hear of a file's fate: an address that is told by POST, and how long it may take to answer.
NOTIFY_URL = os.environ.get("NOTIFY_URL")
NOTIFY_TIMEOUT = seconds("NOTIFY_TIMEOUT", 2)
