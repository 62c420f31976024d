"""The payment gateway, as its clients see it: HTTP, JSON, and an Idempotency-Key, so that nobody pays twice.

A status that says what is wrong becomes the exception of that name; a gateway that is slow or away is whatever the
socket says: `TimeoutError`, `URLError`.
"""

from __future__ import annotations

import json
import urllib.request
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

from examples.errorfilter.exceptions import OF_STATUS, HttpException
from examples.errorfilter.messages import Charge

_MOST = 64 * 1024  # bytes of an answer


class Gateway:
    def __init__(self, url: str, timeout: timedelta) -> None:
        self._url = url.rstrip("/")
        self._timeout = timeout.total_seconds()

    def charge(self, charge: Charge) -> str:
        """The gateway's id of the payment: the same, however often it is asked."""
        order = {"amount": charge.amount, "currency": charge.currency, "source": charge.source}
        headers = {"Content-Type": "application/json", "Idempotency-Key": charge.id}
        request = urllib.request.Request(f"{self._url}/charges", json.dumps(order).encode(), headers)
        return str(self._ask(request)["id"])

    def address_of(self, customer: str) -> str:
        """Where a customer's receipts go."""
        return str(self._ask(urllib.request.Request(f"{self._url}/customers/{quote(customer, safe='')}"))["email"])

    def _ask(self, request: urllib.request.Request) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                found: dict[str, Any] = json.loads(answer.read(_MOST))
                return found
        except HTTPError as error:
            with error:
                raise _understood(error, error.read(_MOST)) from None


def _understood(error: HTTPError, body: bytes) -> HttpException:
    try:
        reason = str(json.loads(body)["error"])[:200]
    except (ValueError, KeyError, TypeError):  # it did not come from the gateway itself
        reason = str(error.reason)
    kind = OF_STATUS.get(error.code, HttpException)
    return kind(f"{error.code}: {reason}", status=error.code, headers=dict(error.headers))
