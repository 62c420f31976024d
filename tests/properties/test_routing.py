"""Matchers against models too simple to be wrong: a list of bindings, and one rule for what fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.broker.dialect import DIALECTS
from redrive.broker.exchanges import MATCHERS, Topic

Binding: TypeAlias = tuple[int, str]  # destination, key
ANY_NUMBER_OF_HASHES = DIALECTS["3.10"]

words = st.sampled_from(["a", "b", "", "*", "#"])
patterns = st.lists(words, max_size=6).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", "c", "", "*", "#"]), max_size=7).map(".".join)


# What fits ------------------------------------------------------------------------------------------


def topic_fits(pattern: str, key: str) -> bool:
    return _fits(_split(pattern), _split(key))


def _split(key: str) -> list[str]:
    return key.split(".") if key else []


def _fits(pattern: Sequence[str], key: Sequence[str]) -> bool:
    match pattern, key:
        case [], _:
            return not key
        case ["#", *rest], _:
            return _fits(rest, key) or (bool(key) and _fits(pattern, key[1:]))
        case [_, *_], []:
            return False
        case [word, *rest], [said, *after]:
            return word in ("*", said) and _fits(rest, after)
    raise AssertionError(pattern)


FITS: dict[str, Callable[[str, str], bool]] = {
    "direct": lambda pattern, key: pattern == key,
    "fanout": lambda _pattern, _key: True,
    "topic": topic_fits,
    "headers": lambda _pattern, _key: True,  # without arguments
}


# The properties -------------------------------------------------------------------------------------


@given(st.lists(patterns, max_size=8), keys)
def test_topics_match_as_their_definition_says(bound: list[str], key: str) -> None:
    topic: Topic[int] = Topic(ANY_NUMBER_OF_HASHES)
    for destination, pattern in enumerate(bound):
        topic.bind(destination, pattern, {})

    found = list(topic.match(key, {}))

    assert sorted(found) == [number for number, pattern in enumerate(bound) if topic_fits(pattern, key)]


operations = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["bind", "bind", "unbind"]), st.integers(0, 3), patterns),
        st.tuples(st.just("drop"), st.integers(0, 3), st.just("")),
    ),
    max_size=30,
)


@pytest.mark.parametrize("kind", MATCHERS)
@given(operations, keys)
def test_whatever_was_bound_and_unbound_before_only_what_is_bound_matches(
    kind: str, operations: list[tuple[str, int, str]], key: str
) -> None:
    matcher = MATCHERS[kind](ANY_NUMBER_OF_HASHES)
    model: set[Binding] = set()
    for operation, destination, pattern in operations:
        binding = destination, pattern
        if operation == "bind":
            assert matcher.bind(destination, pattern, {}) == (binding not in model)
            model.add(binding)
        elif operation == "unbind":
            assert matcher.unbind(destination, pattern, {}) == (binding in model)
            model.discard(binding)
        else:
            assert matcher.drop(destination) == any(bound == destination for bound, _ in model)
            model = {bound for bound in model if bound[0] != destination}

    found = list(matcher.match(key, {}))

    assert sorted(found) == sorted({destination for destination, pattern in model if FITS[kind](pattern, key)})
    assert sorted(matcher.bindings()) == sorted((*binding, {}) for binding in model)
    assert len(matcher) == len(model)


@given(st.lists(st.tuples(st.integers(0, 3), patterns), max_size=12))
def test_a_topic_exchange_whose_bindings_are_gone_remembers_nothing_of_them(bound: list[Binding]) -> None:
    topic: Topic[int] = Topic(ANY_NUMBER_OF_HASHES)
    for destination, pattern in bound:
        topic.bind(destination, pattern, {})
    for destination, pattern in set(bound):
        assert topic.unbind(destination, pattern, {})

    assert not topic._root
    assert not len(topic)
