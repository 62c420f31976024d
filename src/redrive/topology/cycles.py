"""Ways that lead back to where they began, in a graph of names.

A broker may have ten thousand queues, so all of this takes about as many steps as there are names and ways: first the
graph falls apart into groups of names that reach each other, and only within those is anything looked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

Edges = Mapping[str, Sequence[str]]  # where one can go from each name; what is no key leads nowhere


def find_cycles(edges: Edges) -> list[tuple[str, ...]]:
    """Every name that lies on a cycle is in one of these. None of them is there twice, and each begins with its
    smallest name.
    """
    cycles = []
    for group in _groups(edges):
        told: set[str] = set()
        for name in sorted(group):
            if name not in told and (cycle := _shortest_way_back(name, edges, group)):
                told.update(cycle)
                first = cycle.index(min(cycle))
                cycles.append(cycle[first:] + cycle[:first])
    return sorted(cycles)


def _groups(edges: Edges) -> Iterator[set[str]]:
    """The names that reach each other. Whoever was left last, when all ways were gone, reaches most; so going back from
    those first, one comes to nobody but to those whom they reach, too (Kosaraju).
    """
    back: dict[str, list[str]] = {name: [] for name in edges}
    for name, ways in edges.items():
        for way in ways:
            if way in back:
                back[way].append(name)
    grouped: set[str] = set()
    for name in reversed(list(_in_leaving_order(edges, edges, set()))):
        if group := set(_in_leaving_order((name,), back, grouped)):
            yield group


def _in_leaving_order(starts: Sequence[str] | Edges, edges: Edges, seen: set[str]) -> Iterator[str]:
    """All names that can be reached and were not seen, in the order in which one leaves them for good."""
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        path = [(start, iter(edges[start]))]
        while path:
            name, ways = path[-1]
            step = next((way for way in ways if way in edges and way not in seen), None)
            if step is None:
                path.pop()
                yield name
            else:
                seen.add(step)
                path.append((step, iter(edges[step])))


def _shortest_way_back(start: str, edges: Edges, within: set[str]) -> tuple[str, ...]:
    came_from: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        name = waiting.popleft()
        for step in edges[name]:
            if step == start:
                return _way(start, name, came_from)
            if step in within and step not in came_from:
                came_from[step] = name
                waiting.append(step)
    return ()


def _way(start: str, end: str, came_from: Mapping[str, str]) -> tuple[str, ...]:
    way = [end]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return tuple(reversed(way))
