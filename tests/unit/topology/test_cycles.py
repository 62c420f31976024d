from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.topology.cycles import find_cycles

NAMES = st.sampled_from("abcdefg")
LONG = 100_000


@pytest.mark.parametrize(
    ("edges", "cycles"),
    [
        ({}, []),
        ({"a": ["a"]}, [("a",)]),
        ({"a": ["b"], "b": []}, []),
        ({"a": ["elsewhere"]}, []),
        ({"a": ["b", "c"], "b": ["d"], "c": ["a"], "d": []}, [("a", "c")]),
        ({"b": ["a"], "a": ["b"]}, [("a", "b")]),
        ({"a": ["b", "c"], "b": ["a"], "c": ["a"]}, [("a", "b"), ("a", "c")]),
        ({"a": ["b"], "b": ["c", "a"], "c": ["a"]}, [("a", "b"), ("a", "b", "c")]),
        ({"a": ["b"], "b": ["a", "c"], "c": ["d"], "d": ["c"]}, [("a", "b"), ("c", "d")]),
    ],
    ids=str,
)
def test_cycles_are_told_once_from_their_smallest_name_on(
    edges: dict[str, list[str]], cycles: list[tuple[str, ...]]
) -> None:
    assert find_cycles(edges) == cycles


@given(st.dictionaries(NAMES, st.lists(NAMES, max_size=3, unique=True)))
def test_whatever_lies_on_a_cycle_is_told_and_nothing_else(edges: dict[str, list[str]]) -> None:
    cycles = find_cycles(edges)

    assert {name for cycle in cycles for name in cycle} == {name for name in edges if name in reached(name, edges)}
    assert len(set(cycles)) == len(cycles)
    for cycle in cycles:
        assert cycle[0] == min(cycle)
        assert all(after in edges[name] for name, after in pairwise((*cycle, cycle[0])))


def reached(start: str, edges: dict[str, list[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = set(edges.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


def test_long_chains_are_no_trouble() -> None:
    """Each of their names reaches all that come behind it: who looked from each anew would take minutes."""
    chain = {f"{number:06}": [f"{number + 1:06}"] for number in range(LONG)}

    assert find_cycles(chain) == []
    [cycle] = find_cycles(chain | {f"{LONG:06}": ["000000"]})
    assert len(cycle) == LONG + 1
