"""Topologies, and migrations of queues."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.errors.base import ConfigurationError, RedriveError


class TopologyError(ConfigurationError):
    """A topology that no broker should get. Every problem is told at once; nothing was applied.

    Why: a name that is too long or the broker's own, an argument with a wrong value or for another type of queue, a
    binding to what is not there, a retry by a route that this queue or this broker does not have.

    Do: fix each problem in the list. Nothing was changed, so `redrive topology plan APP` can be tried until it is
    quiet.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = f"{len(self.problems)} problems" if len(self.problems) > 1 else "a problem"
        super().__init__(f"the topology has {count}:\n" + "\n".join(f"  - {problem}" for problem in self.problems))


class TopologyConflict(RedriveError):
    """The broker holds something else under a wanted name, and cannot change it in place. Nothing was applied.

    Whose: the deployment's: code and broker disagree, and only people know which of them is right.

    Why: the queue or exchange was declared before with other arguments: by hand, by an older release, or by another
    program.

    Do: `redrive topology plan APP` shows each difference. Change the code to what is there, or give a queue what the
    code says with `redrive topology migrate APP QUEUE`, which loses nothing.
    """

    def __init__(self, conflicts: Sequence[str]) -> None:
        self.conflicts = tuple(conflicts)
        lines = "\n".join(f"  - {conflict}" for conflict in self.conflicts)
        super().__init__(
            f"the broker holds something else:\n{lines}\n"
            "RabbitMQ cannot change it in place: see `redrive topology plan`, and `redrive topology migrate` for queues"
        )


class TopologyMissing(RedriveError):
    """The broker lacks something that the application needs and does not make itself. Nothing was applied.

    Whose: the deployment's.

    Why: the application has `declare=False`, so that another program makes its queues, and has not yet. Or a queue is
    taken as it is (`existing=True`), and does not exist in this virtual host.

    Do: `redrive topology apply APP` with a user who may configure, or `declare=True`. For an existing queue: check its
    name and the virtual host, start the program that declares it, or leave `existing=True` out, and Redrive makes it.
    """

    def __init__(self, missing: Sequence[str], existing: Sequence[str] = ()) -> None:
        """`existing`: those of the missing queues that are to be taken as they are."""
        self.missing = tuple(missing)
        lines = [f"  - {one}" for one in self.missing]
        made = "and the application declares nothing (declare=False): `redrive topology apply` makes it"
        taken = (
            f"{', '.join(existing)}: existing=True takes a queue as it is, and never makes it. Check its name and the "
            "virtual host, and start the program that declares it; or leave existing=True out"
        )
        hints = ([made] if len(self.missing) > len(existing) else []) + ([taken] if existing else [])
        super().__init__("\n".join(["the broker lacks what the application needs:", *lines, *hints]))


class MigrationRefused(RedriveError):
    """A queue cannot be migrated now. Every reason is told at once; nothing was changed.

    Whose: the situation's: it would lose or reorder messages, or the broker would refuse it.

    Why: consumers are still at work, a stream or an auto-delete queue is concerned, or the messages that wait would not
    fit the new limits; each reason is told.

    Do: remove the reasons: stop the consumers, or pass `--wait-for-consumers`. Then run it again.
    """

    def __init__(self, queue: str, reasons: Sequence[str]) -> None:
        self.queue = queue
        self.reasons = tuple(reasons)
        said = self.reasons[0] if len(self.reasons) == 1 else "".join(f"\n  - {reason}" for reason in self.reasons)
        super().__init__(f"queue {queue} was not migrated: {said}")


class MigrationPaused(RedriveError):
    """A migration stopped half-way. What was done is recorded and no message is lost: run it again to go on.

    Whose: nobody's, most often: the broker or the network went away, or a limit of time was reached.

    Do: run the same command again. It finds its record, and goes on with the step in which it stopped. Until then
    messages wait in a queue beside the one that is migrated.
    """

    def __init__(self, queue: str, step: str, why: str) -> None:
        super().__init__(f"the migration of queue {queue} stopped in step {step!r}: {why}. Run it again to go on")
        self.queue = queue
        self.step = step
        self.why = why
