"""Nothing in a picture lies on anything else, and every edge begins and ends where it should."""

import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given

from redrive.recovery.retry import Retry, RetryRoute
from redrive.topology import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.draw.layout import INDENT, Box, Layout, PlacedEdge, PlacedNode
from redrive.topology.draw.picture import picture_of
from unit.topology.draw.topologies import (
    any_definitions,
    bound,
    dying,
    of_hostile_names,
    orders,
    queue,
    tangles,
    topic,
)


class Point(NamedTuple):
    x: float
    y: float


def laid_out(definitions: Definitions) -> Layout:
    return Layout(picture_of(definitions))


def placed(layout: Layout, name: str) -> PlacedNode:
    (found,) = [each for each in layout.nodes.values() if each.node.name == name]
    return found


def edge(layout: Layout, source: str, target: str) -> PlacedEdge:
    ends = (placed(layout, source).node.id, placed(layout, target).node.id)
    (found,) = [each for each in layout.edges if each.edge.ends == ends]
    return found


def points(path: str) -> Iterator[Point]:
    """Many points along the lines and curves of a path."""
    steps = [[float(number) for number in step.split()] for step in re.split("[MLC]", path)[1:]]
    here = steps[0]
    for numbers in steps[1:]:
        end = numbers[-2:]
        corners = [here, numbers[:2], numbers[2:4] or end, end] if len(numbers) == 6 else [here, here, end, end]
        for t in (part / 10 for part in range(11)):
            shares = (1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3
            yield Point(
                *(sum(share * corner[i] for share, corner in zip(shares, corners, strict=True)) for i in (0, 1))
            )
        here = end


def overlap(one: Box, other: Box) -> bool:
    beside = one.right <= other.x or other.right <= one.x
    return not beside and not (one.bottom <= other.y or other.bottom <= one.y)


def grown(box: Box, by: float) -> Box:
    return Box(box.x - by, box.y - by, box.width + 2 * by, box.height + 2 * by)


def at(point: Point) -> Box:
    return Box(point.x, point.y, 0.001, 0.001)


def is_on_border(box: Box, point: Point) -> bool:
    """Paths are written with a tenth of a pixel."""
    return grown(box, 0.06).contains(at(point)) and not overlap(grown(box, -0.06), at(point))


def middle(box: Box) -> float:
    return box.y + box.height / 2


# For all pictures ---------------------------------------------------------------------------------


@given(any_definitions)
def test_no_two_nodes_overlap(definitions: Definitions) -> None:
    boxes = [node.box for node in laid_out(definitions).nodes.values()]

    assert not any(overlap(one, other) for one, other in combinations(boxes, 2))


@given(any_definitions)
def test_no_label_overlaps_a_node_or_another_label(definitions: Definitions) -> None:
    layout = laid_out(definitions)
    labels = [edge.label for edge in layout.edges if edge.lines]

    assert not any(overlap(label, node.box) for label in labels for node in layout.nodes.values())
    assert not any(overlap(one, other) for one, other in combinations(labels, 2))


@given(any_definitions)
def test_a_box_has_room_for_what_is_written_in_it(definitions: Definitions) -> None:
    layout = laid_out(definitions)

    for node in layout.nodes.values():
        assert node.box.height > node.text_height
        assert all(node.box.width > font.width(text) + indent + INDENT for text, font, indent in node.texts)
    for each in layout.edges:
        assert all(each.label.width > each.font.width(line) for line in each.lines)
        assert each.label.height >= len(each.lines) * each.font.line_height


@given(any_definitions)
def test_every_edge_begins_and_ends_at_its_nodes(definitions: Definitions) -> None:
    layout = laid_out(definitions)

    for each in layout.edges:
        start, *_, end = points(each.path)
        assert is_on_border(each.source.box, start)
        assert is_on_border(each.target.box, end)


@given(tangles)
def test_no_edge_runs_through_a_node(definitions: Definitions) -> None:
    layout = laid_out(definitions)
    insides = [grown(node.box, -0.5) for node in layout.nodes.values()]

    for each in layout.edges:
        assert not any(overlap(inside, at(point)) for point in points(each.path) for inside in insides)


@given(any_definitions)
def test_everything_is_within_the_picture(definitions: Definitions) -> None:
    layout = laid_out(definitions)
    paper = Box(0, 0, layout.width, layout.height)

    assert all(paper.contains(node.box) for node in layout.nodes.values())
    assert all(paper.contains(group) for group in layout.groups)
    assert all(paper.contains(edge.label) for edge in layout.edges if edge.lines)
    assert all(paper.contains(at(point)) for edge in layout.edges for point in points(edge.path))


@example(
    Definitions.of(  # queue c, which is missing, has b as its retry queue
        [ExchangeDefinition("c", "direct")],
        [
            QueueDefinition("a", arguments={"x-message-ttl": 0, "x-dead-letter-exchange": ""}),
            QueueDefinition("b", arguments={"x-message-ttl": 0, "x-dead-letter-exchange": "b"}),
        ],
        [BindingDefinition("a", "a", ""), BindingDefinition("a", "b", ""), BindingDefinition("b", "c", "")],
    )
)
@given(any_definitions)
def test_groups_hold_their_members_and_nobody_else(definitions: Definitions) -> None:
    picture = picture_of(definitions)
    layout = Layout(picture)

    for group, box in zip(picture.groups, layout.groups, strict=True):
        assert {node.node.id for node in layout.nodes.values() if overlap(node.box, box)} == set(group.members)


@given(any_definitions)
def test_the_nodes_of_a_column_are_equally_wide(definitions: Definitions) -> None:
    widths: dict[float, set[float]] = {}
    for node in laid_out(definitions).nodes.values():
        widths.setdefault(node.box.x, set()).add(node.box.width)

    assert all(len(each) == 1 for each in widths.values())


# For one ------------------------------------------------------------------------------------------


def test_a_message_goes_from_left_to_right() -> None:
    layout = laid_out(orders(Retry(attempts=3, delay="15s")))

    stations = [placed(layout, name).box.x for name in ("events", "orders", "orders.retry", "orders.dlq")]

    assert all(one < next for one, next in pairwise(stations))
    assert [heading for heading, _ in layout.headings] == ["EVENTS IN", "QUEUES", "WAITING", "DEAD LETTERS"]


@pytest.mark.parametrize(
    ("source", "target"), [("orders", "orders.retry"), ("orders.retry", "orders"), ("orders", "orders.dlq")]
)
def test_between_a_queue_and_its_parts_edges_run_level(source: str, target: str) -> None:
    layout = laid_out(orders(Retry(attempts=3, delay="15s")))

    heights = {point.y for point in points(edge(layout, source, target).path)}

    assert max(heights) - min(heights) < 0.001


def test_a_retry_leaves_above_and_comes_back_below() -> None:
    layout = laid_out(orders(Retry(attempts=3, delay="15s", via=RetryRoute.REJECT)))

    away, back = edge(layout, "orders", "orders.retry"), edge(layout, "orders.retry", "orders")

    assert away.start.y < back.end.y


def test_waits_stand_below_each_other_from_the_shortest_to_the_longest() -> None:
    layout = laid_out(orders(Retry(steps=["10m", "30s", "2m"])))

    tops = [placed(layout, f"orders.retry.{delay}").box.y for delay in ("30s", "2m", "10m")]

    assert tops == sorted(tops)


def test_a_queue_is_as_high_as_its_parts() -> None:
    layout = laid_out(orders(Retry(steps=["30s", "2m", "10m"])))

    main, first, last = (placed(layout, name).box for name in ("orders", "orders.retry.30s", "orders.dlq"))

    assert main.y <= first.y
    assert main.bottom >= last.bottom


def test_exchanges_that_are_bound_behind_each_other_stand_behind_each_other() -> None:
    layout = laid_out(
        Definitions.of(
            [topic("all"), topic("eu"), topic("de")],
            [queue("q")],
            [
                *bound("all", "eu", "#", kind="exchange"),
                *bound("eu", "de", "#", kind="exchange"),
                *bound("de", "q", "#"),
            ],
        )
    )

    stations = [placed(layout, name).box.x for name in ("all", "eu", "de", "q")]

    assert stations == sorted(stations)
    assert len(set(stations)) == 4


def test_exchanges_in_a_circle_are_laid_out_all_the_same() -> None:
    circle = [*bound("a", "b", "#", kind="exchange"), *bound("b", "c", "#", kind="exchange")]
    circle += bound("c", "a", "#", kind="exchange")

    assert len(laid_out(Definitions.of([topic("a"), topic("b"), topic("c")], bindings=circle)).edges) == 3


def test_queues_of_the_same_exchange_stand_together() -> None:
    layout = laid_out(
        Definitions.of(
            [topic("x"), topic("y")],
            [queue(name) for name in "abcd"],
            [*bound("x", "a", "#"), *bound("y", "b", "#"), *bound("x", "c", "#"), *bound("y", "d", "#")],
        )
    )

    assert sorted("abcd", key=lambda name: placed(layout, name).box.y) == ["a", "c", "b", "d"]


def test_an_exchange_stands_amid_its_queues() -> None:
    queues = [queue(name) for name in "abcde"]
    layout = laid_out(Definitions.of([topic("x")], queues, [one for q in queues for one in bound("x", q.name, "#")]))

    assert middle(placed(layout, "x").box) == middle(placed(layout, "c").box)


def test_dead_letters_of_several_queues_stand_to_the_right_of_all_groups() -> None:
    layout = laid_out(
        Definitions.of(
            [ExchangeDefinition("dlx", "fanout")],
            [dying("a", "dlx"), dying("b", "dlx"), queue("graveyard"), queue("c"), queue("c.dlq")],
            bound("dlx", "graveyard"),
        )
    )

    assert placed(layout, "graveyard").box.x > max(group.right for group in layout.groups)


def test_a_loop_begins_and_ends_at_the_same_node() -> None:
    layout = laid_out(Definitions.of(queues=[dying("a", "", "a", message_ttl=1000)]))

    start, *_, end = points(edge(layout, "a", "a").path)

    assert start != end
    assert start.x == end.x == pytest.approx(placed(layout, "a").box.right, abs=0.06)


def test_an_exchange_that_skips_a_column_goes_around_what_stands_there() -> None:
    layout = laid_out(
        Definitions.of(
            [topic("events")],
            [queue("orders"), queue("orders.dlq")],
            [*bound("events", "orders", "order.*"), *bound("events", "orders.dlq", "#.failed")],
        )
    )

    lowest = max(point.y for point in points(edge(layout, "events", "orders.dlq").path))

    assert lowest > placed(layout, "orders").box.bottom


def test_names_of_255_bytes_leave_the_picture_readable() -> None:
    assert laid_out(of_hostile_names()).width < 3000


def test_nothing_has_a_layout_too() -> None:
    assert laid_out(Definitions()).nodes == {}


def test_a_layout_introduces_itself() -> None:
    layout = laid_out(Definitions.of(queues=[queue("q")]))

    assert repr(layout) == f"<Layout {layout.width} x {layout.height}, nodes=1 edges=0>"
