"""What a document says, statement by statement, and which test asserts it.

says = Checklist({"ttl": "A message waits 15,000 ms for its retry", ...}, untested={"ui": "why"})

@says("ttl")
def test_...

def test_every_statement_is_asserted() -> None:
    assert not says.unclaimed

docs/systems has a table of it.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


class Checklist:
    def __init__(self, statements: Mapping[str, str], untested: Mapping[str, str] | None = None) -> None:
        """`untested`: why a statement has no test."""
        self.statements = dict(statements)
        self.untested = dict(untested or {})
        self.claims: dict[str, list[Callable[..., Any]]] = {name: [] for name in statements}
        self._refuse_unknown(*self.untested)

    def __call__(self, *names: str) -> Callable[[Test], Test]:
        """This test asserts these statements."""
        self._refuse_unknown(*names)

        def claim(test: Test) -> Test:
            for name in names:
                self.claims[name].append(test)
            return test

        return claim

    def _refuse_unknown(self, *names: str) -> None:
        if unknown := [name for name in names if name not in self.statements]:
            raise KeyError(f"the checklist has no {', '.join(unknown)}")

    @property
    def unclaimed(self) -> list[str]:
        """The statements with neither a test nor a reason why there is none, and those with both."""
        return [
            f"{name}: {self.statements[name]}"
            for name, tests in self.claims.items()
            if bool(tests) is (name in self.untested)
        ]
