"""What is fuzzed. A target takes bytes, tries everything with them, and names what it saw.

Nothing but the bytes decides what happens, so that an input is the whole story of a finding. An input that makes a
target say a new word is worth keeping. What a target promises and does not keep is `Broken`; any other exception is a
finding, too.

A target that needs a server has it between `__enter__` and `__exit__`. After a finding it is left and entered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from fuzzing.mutation import Mutator


class Broken(Exception):
    """A promise that was not kept."""


class Target:
    """`<Target queries>`"""

    seconds = 1.0  # of processor time for one input; a typical one takes a thousandth of it
    grows = True  # are inputs that show something new worth a place in the corpus?

    def __init__(self, name: str, seeds: tuple[str, ...] = ()) -> None:
        """`seeds`: what its corpus files begin with, if not with its name."""
        self.name = name
        self.seeds = seeds or (name,)

    def run(self, data: bytes) -> set[str]:
        raise NotImplementedError

    def mutate(self, mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
        """Another input. All chance is the mutator's."""
        return mutator.payload(data, others)

    def made(self) -> dict[str, bytes]:
        """Inputs to begin with, by name; `--make-corpus` writes them."""
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
