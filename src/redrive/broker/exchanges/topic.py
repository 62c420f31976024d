"""topic: keys are words with dots between them; in a binding `*` stands for one word and `#` for any number.

Between two dots there is a word, even an empty one: "a..b" are three words, "." are two. The empty key alone has
none, so that `#` matches it and `*` does not.

The bindings form a tree with a word on each branch. A message walks down it on all branches at once: after each
word of its key it stands at some nodes, and the next word leads from each of them to the branch of that word and to
the branch `*`. A branch `#` is entered without a word and, once entered, never left behind: its node stays among
the nodes where the message stands, whatever the words. So the work is at most the number of words times the number
of nodes, for any number of `#`; RabbitMQ tries every way to share out the words, and since 4.3 allows two of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from redrive.broker.dialect import LATEST, Dialect
from redrive.broker.exchanges.bindings import Binding, Bindings, D, InvalidBinding, ReferenceCounts
from redrive.wire.values import Table

_ONE, _ANY = "*", "#"


class _Node(Generic[D]):
    __slots__ = ("branches", "destinations", "lingers")

    def __init__(self, word: str = "") -> None:
        self.branches: dict[str, _Node[D]] = {}
        self.destinations: ReferenceCounts[D] = ReferenceCounts()
        self.lingers = word == _ANY

    def __bool__(self) -> bool:
        """Is there anything at this node or below?"""
        return bool(self.branches or self.destinations)


class Topic(Bindings[D]):
    def __init__(self, dialect: Dialect = LATEST) -> None:
        super().__init__(dialect)
        self._root: _Node[D] = _Node()

    def match(self, key: str, headers: Table) -> Iterable[D]:  # noqa: ARG002
        nodes = _with_any([self._root])
        for word in _words(key):
            nodes = _with_any(_next(nodes, word))
        found: dict[D, int] = {}
        for node in nodes:
            found.update(node.destinations)
        return tuple(found)

    def _check(self, binding: Binding[D]) -> None:
        key, most = binding.key, self.dialect.most_hashes
        hashes = _words(key).count(_ANY)
        if most is not None and hashes > most:
            raise InvalidBinding(f"Topic binding key '{key}' uses {hashes} '#' wildcards, at most {most} are allowed")

    def _include(self, binding: Binding[D]) -> None:
        node = self._root
        for word in _words(binding.key):
            after = node.branches.get(word)
            if after is None:
                after = node.branches[word] = _Node(word)
            node = after
        node.destinations.add(binding.destination)

    def _exclude(self, binding: Binding[D]) -> None:
        words = _words(binding.key)
        way = [self._root]
        for word in words:
            way.append(way[-1].branches[word])
        way.pop().destinations.remove(binding.destination)
        for node, word in zip(reversed(way), reversed(words), strict=True):
            if node.branches[word]:
                break
            del node.branches[word]


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def _next(nodes: Iterable[_Node[D]], word: str) -> list[_Node[D]]:
    """Where a message stands after one more word."""
    after: dict[_Node[D], None] = {}
    for node in nodes:
        if node.lingers:
            after[node] = None
        for branch in (word, _ONE):
            if (below := node.branches.get(branch)) is not None:
                after[below] = None
    return list(after)


def _with_any(nodes: list[_Node[D]]) -> list[_Node[D]]:
    """These nodes, and those that `#` leads to without a word."""
    here = set(nodes)
    for node in nodes:  # grows while it is walked: `#.#`
        below = node.branches.get(_ANY)
        if below is not None and below not in here:
            here.add(below)
            nodes.append(below)
    return nodes
