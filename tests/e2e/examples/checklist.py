"""What a seed says, statement by statement, and which test asserts it.

says = Checklist({"ttl": "A message waits 15,000 ms for its retry", ...})

@says("ttl")
def test_...

def test_every_statement_is_asserted() -> None:
    assert not says.unclaimed
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


class Checklist:
    def __init__(self, statements: Mapping[str, str]) -> None:
        self.statements = dict(statements)
        self.claims: dict[str, list[str]] = {name: [] for name in statements}

    def __call__(self, *names: str) -> Callable[[Test], Test]:
        """This test asserts these statements."""
        if unknown := [name for name in names if name not in self.statements]:
            raise KeyError(f"the checklist has no {', '.join(unknown)}")

        def claim(test: Test) -> Test:
            for name in names:
                self.claims[name].append(test.__name__)
            return test

        return claim

    @property
    def unclaimed(self) -> list[str]:
        return [f"{name}: {self.statements[name]}" for name, tests in self.claims.items() if not tests]
