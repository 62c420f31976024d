"""Roles, acts, and who may do which act to which queue.

Each act has the least role that it needs. Whose queues are restricted by patterns (`orders.*`, matched with case) sees
those queues alone, and:

- an act on a queue wants the queue said. Said none, the answer is no: who forgets to ask is not let in by that.
- where messages are sent is asked for, too: a queue that is named is one to be seen, and what goes to an exchange gets
  wherever that is bound to, so it needs a principal who is unrestricted.
- LOOK and READ_AUDIT also exist without a queue: the lists of queues, operations and entries, of which one gets what
  one `sees`. Entries about no queue (keys, sign-ins) are for the unrestricted.
- the outbox is nobody's queue: its acts need a principal who is unrestricted. Its rows, the topology and the doctor's
  findings name everybody's queues: whoever shows them asks `is_unrestricted`, or leaves out what one does not see.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import sha256

from redrive.errors import NotAllowed

ALL_QUEUES = ("*",)
BY_SESSION = "session"


class Role(StrEnum):
    """Each has what those before it have. They compare by that, not as the words that they are."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        return list(Role).index(self)

    def __lt__(self, other: str) -> bool:
        return self.rank < _rank(other)

    def __le__(self, other: str) -> bool:
        return self.rank <= _rank(other)

    def __gt__(self, other: str) -> bool:
        return self.rank > _rank(other)

    def __ge__(self, other: str) -> bool:
        return self.rank >= _rank(other)


def _rank(other: str) -> int:
    """A word beside a role would compare by the alphabet, in which admin is the least."""
    if not isinstance(other, Role):
        raise TypeError(f"{other!r} is no Role")
    return other.rank


class Permission(StrEnum):
    """What somebody does."""

    LOOK = "look"  # at queues, groups, messages without their secrets, operations, outbox, topology, doctor
    PLAN = "plan"
    REDRIVE = "re-drive"
    STEER = "steer"  # pause, resume, cancel, rate
    SPEND = "spend deliveries"  # by a look that counts towards a delivery limit
    ANY_QUEUE = "peek at any queue"  # also at queues for work, and at those with consumers
    RETRY_OUTBOX = "retry outbox"
    READ_AUDIT = "read audit"
    EXPORT = "export"  # without secrets
    EDIT = "edit"
    DISCARD = "discard"
    IMPORT = "import"
    REVEAL = "reveal"  # what is hidden in messages, by a look or an export
    DISCARD_OUTBOX = "discard outbox"

    @property
    def needs(self) -> Role:
        return _NEEDS[self]


_NEEDS = {
    Permission.LOOK: Role.VIEWER,
    Permission.PLAN: Role.OPERATOR,
    Permission.REDRIVE: Role.OPERATOR,
    Permission.STEER: Role.OPERATOR,
    Permission.SPEND: Role.OPERATOR,
    Permission.ANY_QUEUE: Role.OPERATOR,
    Permission.RETRY_OUTBOX: Role.OPERATOR,
    Permission.READ_AUDIT: Role.OPERATOR,
    Permission.EXPORT: Role.OPERATOR,
    Permission.EDIT: Role.ADMIN,
    Permission.DISCARD: Role.ADMIN,
    Permission.IMPORT: Role.ADMIN,
    Permission.REVEAL: Role.ADMIN,
    Permission.DISCARD_OUTBOX: Role.ADMIN,
}
_OF_LISTS = frozenset({Permission.LOOK, Permission.READ_AUDIT})
_OF_THE_OUTBOX = frozenset({Permission.RETRY_OUTBOX, Permission.DISCARD_OUTBOX})


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who is known. `how`: "key ID", "token" or "session". `key`: the id of the key that opened a session."""

    name: str
    role: Role
    queues: tuple[str, ...] = ALL_QUEUES
    how: str = ""
    key: str | None = field(default=None, compare=False)

    @property
    def identity(self) -> str:
        """Return the credential that this is: what belongs to one is not another's, though they share a name."""
        return f"key {self.key}" if self.key is not None else self.how if self.how[:4] == "key " else self._by_name

    @property
    def _by_name(self) -> str:
        return f"{self.how or 'name'} {sha256(self.name.encode()).hexdigest()[:32]}"

    @property
    def is_unrestricted(self) -> bool:
        return "*" in self.queues

    @property
    def is_by_cookie(self) -> bool:
        """Then another site can make the browser ask: see `origin`."""
        return self.how == BY_SESSION

    def sees(self, queue: str) -> bool:
        return any(fnmatchcase(queue, pattern) for pattern in self.queues)

    def may(self, act: Permission, queue: str | None = None) -> bool:
        if self.role < act.needs:
            return False
        if self.is_unrestricted:
            return True
        if act in _OF_THE_OUTBOX:
            return False
        return act in _OF_LISTS if queue is None else self.sees(queue)

    def not_allowed(self, act: Permission, queue: str | None = None) -> NotAllowed:
        """Return the error that says why this principal may not do that."""
        if queue is not None and not self.sees(queue):
            return NotAllowed(act, f"{self.name} sees the queues {', '.join(self.queues)}, and nothing else")
        return NotAllowed(act, f"that needs the role {act.needs}, and {self.name} is {self.role}")
