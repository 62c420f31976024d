"""Which column and which row each node of a picture has.

Columns follow the way of a message: exchanges (as many columns as they are bound behind each other), the queues that
are worked on, those in which messages wait, those in which they end; and last, the ends that several queues share.
A row is one queue with its parts. Everything else stands in the row that is in the middle of what it is tied to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from statistics import median_low
from typing import assert_never

from redrive.topology.draw.picture import EdgeKind, NodeKind, Picture


class Place(IntEnum):
    """Kinds of columns, from left to right."""

    EXCHANGES = 0
    QUEUES = 1
    WAITING = 2
    DEAD = 3
    SHARED = 4


@dataclass(frozen=True, slots=True)
class Row:
    main: str | None = None
    waiting: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        return (*((self.main,) if self.main is not None else ()), *self.waiting, *self.dead)


@dataclass(frozen=True, slots=True)
class Grid:
    places: tuple[Place, ...]  # of each column
    rows: tuple[Row, ...]
    column: Mapping[str, int]
    row: Mapping[str, int]


def grid_of(picture: Picture) -> Grid:
    places = _places(picture)
    depths = _depths(picture, {id for id, place in places.items() if place is Place.EXCHANGES})
    deepest = max(depths.values(), default=0)
    later = sorted(set(places.values()) - {Place.EXCHANGES})
    before = (deepest + 1) if depths else 0
    column = {
        id: deepest - depths[id] if place is Place.EXCHANGES else before + later.index(place)
        for id, place in places.items()
    }
    rows = _rows(picture, places)
    row = {id: number for number, each in enumerate(rows) for id in each.members}
    _settle(picture, row, sorted(depths, key=lambda id: depths[id]), len(rows))
    _settle(picture, row, [id for id in places if id not in row], len(rows))
    return Grid((*[Place.EXCHANGES] * before, *later), rows, column, row)


# Columns ------------------------------------------------------------------------------------------


def _places(picture: Picture) -> dict[str, Place]:
    owned = {id for group in picture.groups for id in group.members}
    sources = {edge.source for edge in picture.edges}
    bound = {edge.target for edge in picture.edges if edge.kind is EdgeKind.BINDING}

    def place(id: str, kind: NodeKind) -> Place:
        match kind:
            case NodeKind.EXCHANGE | NodeKind.DELAYS:
                return Place.EXCHANGES
            case NodeKind.MAIN | NodeKind.PLAIN:
                return Place.QUEUES
            case NodeKind.WAITING:
                return Place.WAITING
            case NodeKind.DEAD:
                return Place.DEAD if id in owned else Place.SHARED
            case NodeKind.MISSING if id in sources:
                return Place.EXCHANGES
            case NodeKind.MISSING:
                return Place.QUEUES if id in bound else Place.SHARED
            case _:
                assert_never(kind)

    return {node.id: place(node.id, node.kind) for node in picture.nodes}


def _depths(picture: Picture, exchanges: set[str]) -> dict[str, int]:
    """How many exchanges come after each at most; those in a cycle stop where it closes."""
    after: dict[str, list[str]] = {id: [] for id in exchanges}
    for edge in picture.edges:
        if edge.source in exchanges and edge.target in exchanges:
            after[edge.source].append(edge.target)
    depths: dict[str, int] = {}
    for start in (node.id for node in picture.nodes if node.id in exchanges):
        way = [start]
        while way:
            ahead = [id for id in after[way[-1]] if id not in depths and id not in way]
            if ahead:
                way.append(ahead[0])
            else:
                here = way.pop()
                depths[here] = max((depths[id] + 1 for id in after[here] if id in depths), default=0)
    return {node.id: depths[node.id] for node in picture.nodes if node.id in exchanges}


# Rows ---------------------------------------------------------------------------------------------


def _rows(picture: Picture, places: Mapping[str, Place]) -> tuple[Row, ...]:
    """Queues of the same exchange stand together; a waiting queue that is nobody's stands amid those it serves."""
    groups = {group.main: Row(group.main, group.waiting, group.dead) for group in picture.groups}
    queues = [id for id, place in places.items() if place is Place.QUEUES]
    feeders = _first_feeders(picture, places)
    queues.sort(key=lambda id: feeders.get(id, len(places)))
    rows = [groups.get(id, Row(id)) for id in queues]
    grouped = {id for row in rows for id in row.members}
    for id in (id for id, place in places.items() if place is Place.WAITING and id not in grouped):
        beside = [number for number, row in enumerate(rows) if _are_tied(picture, id, row.members)]
        rows.insert(median_low(beside) + 1 if beside else len(rows), Row(waiting=(id,)))
    return tuple(rows) or (Row(),)


def _first_feeders(picture: Picture, places: Mapping[str, Place]) -> dict[str, int]:
    exchanges = [id for id, place in places.items() if place is Place.EXCHANGES]
    number = {id: position for position, id in enumerate(exchanges)}
    first: dict[str, int] = {}
    for edge in picture.edges:
        if edge.source in number:
            first[edge.target] = min(number[edge.source], first.get(edge.target, len(exchanges)))
    return first


def _are_tied(picture: Picture, id: str, members: Iterable[str]) -> bool:
    others = set(members)
    return any(
        (edge.source == id and edge.target in others) or (edge.target == id and edge.source in others)
        for edge in picture.edges
    )


def _settle(picture: Picture, row: dict[str, int], nodes: Iterable[str], rows: int) -> None:
    """Each in the middle of the rows that it is tied to, as far as those are known."""
    ties: dict[str, list[str]] = {}
    for edge in picture.edges:
        ties.setdefault(edge.source, []).append(edge.target)
        ties.setdefault(edge.target, []).append(edge.source)
    for id in nodes:
        known = [row[other] for other in ties.get(id, ()) if other in row]
        row[id] = median_low(known) if known else rows - 1
