"""Class 90: tx. Local transactions; Redrive itself uses confirms instead."""

from __future__ import annotations

from redrive.wire.method import Method, Sender, method


@method(90, 10, sender=Sender.CLIENT, replies="tx.select-ok")
class TxSelect(Method):
    pass


@method(90, 11, sender=Sender.SERVER)
class TxSelectOk(Method):
    pass


@method(90, 20, sender=Sender.CLIENT, replies="tx.commit-ok")
class TxCommit(Method):
    pass


@method(90, 21, sender=Sender.SERVER)
class TxCommitOk(Method):
    pass


@method(90, 30, sender=Sender.CLIENT, replies="tx.rollback-ok")
class TxRollback(Method):
    pass


@method(90, 31, sender=Sender.SERVER)
class TxRollbackOk(Method):
    pass
