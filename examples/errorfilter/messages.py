"""What is published, here and by others."""

from __future__ import annotations

from msgspec import Struct

from examples.errorfilter.exceptions import ValidationException

CURRENCIES = {"BRL", "EUR", "USD"}


class Charge(Struct):
    """Somebody is to pay. `source` is the gateway's token for a card: no card number is in a message, or in a log."""

    id: str
    customer: str
    amount: int  # in cents
    currency: str = "BRL"
    source: str = "tok_visa"

    def check(self) -> None:
        """Messages come from anywhere. What we can tell ourselves, the gateway need not be asked."""
        if not self.id or len(self.id) > 64 or not self.id.isascii() or not self.id.isprintable():
            raise ValidationException("a charge needs an id of at most 64 ASCII characters")
        if not self.customer.replace("_", "").isalnum():
            raise ValidationException("a charge needs a customer, by letters, digits and underscores")
        if self.amount <= 0:
            raise ValidationException(f"an amount of {self.amount} cents cannot be charged")
        if self.currency not in CURRENCIES:
            raise ValidationException(
                f"nobody pays in {self.currency!r} here; there are {', '.join(sorted(CURRENCIES))}"
            )


class Receipt(Struct):
    """It was paid: a receipt is due."""

    charge: str
    customer: str
    amount: int
    currency: str
    payment: str  # the gateway's id
