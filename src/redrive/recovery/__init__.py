"""Pure decisions about failure: when to retry a message, and when not to.

The worker, batches, consumers of dead letters and the Celery integration decide with these functions; a program of your
own can, too.
"""

from redrive.recovery.admission import admit
from redrive.recovery.classification import Classified, FailureKind, classify
from redrive.recovery.history import HeaderNames, History, read_history
from redrive.recovery.verdict import (
    DiscardVerdict,
    ParkVerdict,
    RecoveryPolicy,
    ReleaseVerdict,
    RequeueVerdict,
    RetryVerdict,
    decide,
)

__all__ = [
    "Classified",
    "DiscardVerdict",
    "FailureKind",
    "HeaderNames",
    "History",
    "ParkVerdict",
    "RecoveryPolicy",
    "ReleaseVerdict",
    "RequeueVerdict",
    "RetryVerdict",
    "admit",
    "classify",
    "decide",
    "read_history",
]
