"""Class 85: confirm. RabbitMQ's publisher confirms."""

from __future__ import annotations

from redrive.wire.argument_types import Bit
from redrive.wire.method import Method, Sender, method


@method(85, 10, sender=Sender.CLIENT, replies="confirm.select-ok")
class ConfirmSelect(Method):
    no_wait: Bit = False


@method(85, 11, sender=Sender.SERVER)
class ConfirmSelectOk(Method):
    pass
