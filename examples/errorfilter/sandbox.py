"""A payment gateway to try against: an HTTP server that does what the card's token says, and keeps accounts.

| source            | POST /charges                                           |
|-------------------|---------------------------------------------------------|
| `tok_visa`        | 201: paid                                               |
| `tok_bad`         | 400: there is no such card                              |
| `tok_declined`    | 422: the bank declines                                  |
| `tok_error`       | 500, for ever                                           |
| `tok_unavailable` | 503, with a Retry-After                                 |
| `tok_recovers`    | 500 twice, then paid                                    |
| `tok_slow`        | paid, but twice the answer comes too late to be heard   |

The same Idempotency-Key is the same payment. `GET /customers/x` tells an address; 404 for a customer whose name begins
with `nobody`, and 500, twice, for one who is `busy`. `GET /charges` tells what was paid, and what was asked for.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from redrive.errors import ConfigurationError

_ANSWERS = {
    "tok_bad": (400, "there is no such card"),
    "tok_declined": (422, "the bank declines"),
    "tok_error": (500, "we have a problem"),
    "tok_unavailable": (503, "we are busy"),
}
_LARGEST = 1024 * 1024
_TOO_LATE = 10.0  # seconds


class Sandbox:
    def __init__(self, address: tuple[str, int]) -> None:
        self.payments: dict[str, dict[str, Any]] = {}  # by idempotency key
        self.asked: Counter[str] = Counter()
        self.ending = threading.Event()
        self._lock = threading.Lock()
        sandbox = self

        class Handler(_Handler):
            at = sandbox

        try:
            self.server = ThreadingHTTPServer(address, Handler)
        except OSError as error:
            where = "{}, port {}".format(*address)
            raise ConfigurationError(
                f"the gateway cannot listen on {where}: {error.strerror}. SANDBOX_PORT names another"
            ) from None
        self.server.daemon_threads = True
        self.url = f"http://{address[0]}:{self.server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[Sandbox]:
        """Beside whatever else this process does."""
        thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), name="gateway", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.ending.set()
            self.server.shutdown()
            thread.join()
            self.server.server_close()

    def charge(self, key: str, order: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        source = order.get("source", "")
        with self._lock:
            self.asked[key] += 1
            if source in _ANSWERS:
                status, reason = _ANSWERS[source]
                return status, {"error": reason}
            is_early = self.asked[key] <= 2
            if source == "tok_recovers" and is_early:
                return 500, {"error": "we have a problem, and it will pass"}
            paid = self.payments.setdefault(key, {"id": f"pay_{len(self.payments) + 1}", "key": key, **order})
        if source == "tok_slow" and is_early:
            self.ending.wait(_TOO_LATE)
        return 201, paid

    def customer(self, name: str) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self.asked[f"customer {name}"] += 1
            if name.startswith("nobody"):
                return 404, {"error": "there is no such customer"}
            if name.startswith("busy") and self.asked[f"customer {name}"] <= 2:
                return 500, {"error": "we have a problem, and it will pass"}
            return 200, {"email": f"{name}@example.org"}

    def accounts(self) -> dict[str, Any]:
        with self._lock:
            return {"payments": list(self.payments.values()), "asked": dict(self.asked)}


class _Handler(BaseHTTPRequestHandler):
    at: Sandbox

    def do_POST(self) -> None:
        try:
            order = json.loads(self.rfile.read(min(int(self.headers.get("Content-Length", 0)), _LARGEST)))
            key = self.headers["Idempotency-Key"]
            if self.path != "/charges" or not key or not isinstance(order, dict):
                raise ValueError(self.path)
        except ValueError:
            self._answer(400, {"error": "want a charge, as JSON, with an Idempotency-Key"})
        else:
            self._answer(*self.at.charge(key, order))

    def do_GET(self) -> None:
        kind, _, name = self.path.strip("/").partition("/")
        if self.path == "/charges":
            self._answer(200, self.at.accounts())
        elif kind == "customers" and name:
            self._answer(*self.at.customer(name))
        else:
            self._answer(404, {"error": f"there is no {self.path}"})

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 503:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True  # he did not wait for us

    def log_message(self, *_: object) -> None:
        pass
