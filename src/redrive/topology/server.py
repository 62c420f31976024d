"""What a version of RabbitMQ can and wants. Measured, not read: the versions are 3.10, 4.0 and 4.3."""

from __future__ import annotations

import re
from dataclasses import dataclass

from redrive.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Server:
    version: tuple[int, ...] = (4, 3)
    delayed_exchanges: bool = False  # has it `x-delayed-message`?
    embedded: bool = False

    @classmethod
    def of(cls, version: str, *, delayed_exchanges: bool = False) -> Server:
        """`version` as people say it: "4.3", "3.10.8"."""
        if not re.fullmatch(r"\d+(\.\d+){0,3}", version, re.ASCII):
            raise ConfigurationError(f"{version!r} is no version of RabbitMQ: write it like '4.3' or '3.10.8'")
        return cls(tuple(int(number) for number in version.split(".")), delayed_exchanges)

    @property
    def unlimited_deliveries(self) -> int | None:
        """The `x-delivery-limit` that means "no limit": from 4.0 on the default is 20 and -1 lifts it; before, there
        is no default, and -1 drops a message at its first requeue.
        """
        return -1 if self.version >= (4,) else None

    @property
    def native_delayed_retry(self) -> bool:
        return self.version >= (4, 3)

    def dead_letters_keep_failures(self, *, quorum: bool) -> bool:
        """Does a message that was rejected come out of a retry queue as one that was delivered before?

        To a quorum queue, from 4.0 on; to a classic one, from 4.3 on. The embedded broker, as 4.0, forgets for both.
        """
        return self.version >= ((4,) if quorum and not self.embedded else (4, 3))

    def __str__(self) -> str:
        rabbitmq = f"RabbitMQ {'.'.join(map(str, self.version)) or 'of unknown version'}"
        return f"the embedded broker (as {rabbitmq})" if self.embedded else rabbitmq
