"""What docs/systems says about the documents of the five systems is what the tests prove."""

import pytest

import write_conformance


@pytest.fixture(scope="module")
def stacks() -> write_conformance.Stacks:
    return write_conformance.collected()


@pytest.mark.parametrize("system", write_conformance.SYSTEMS)
def test_the_table_of_a_system_is_that_of_its_tests(system: str, stacks: write_conformance.Stacks) -> None:
    text = (write_conformance.PAGES / f"{system}.md").read_text()
    assert write_conformance.page(text, system, stacks) == text, "run make reference"
