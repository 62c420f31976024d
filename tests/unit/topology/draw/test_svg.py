"""An SVG is well-formed whatever the names are, needs nothing from elsewhere, and says what the picture says."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given

from redrive.recovery.retry import Retry, RetryRoute
from redrive.topology import Definitions, ExchangeDefinition
from redrive.topology.draw.layout import Layout
from redrive.topology.draw.picture import picture_of
from redrive.topology.draw.svg import svg
from unit.topology.draw.topologies import (
    HOSTILE,
    any_definitions,
    bound,
    dying,
    of_hostile_names,
    orders,
    queue,
    topic,
)

_SPACE = "{http://www.w3.org/2000/svg}"


def drawn(definitions: Definitions) -> ElementTree.Element:
    return ElementTree.fromstring(svg(picture_of(definitions)))


def texts(element: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{_SPACE}text")]


def of_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if name in element.get("class", "").split()]


REJECTING = orders(Retry(attempts=3, delay="15s", via=RetryRoute.REJECT))


@given(any_definitions)
def test_any_definitions_make_well_formed_xml(definitions: Definitions) -> None:
    drawn(definitions)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_and_nothing_else(name: str) -> None:
    root = drawn(Definitions.of([topic(name)], [queue(name)], bound(name, name, name)))

    tags = {element.tag.removeprefix(_SPACE) for element in root.iter()}
    assert tags == {"svg", "title", "desc", "style", "defs", "marker", "path", "rect", "g", "text"}


def test_everything_that_is_to_be_read_is_written() -> None:
    written = texts(drawn(REJECTING))

    assert {"events", "topic exchange", "order.*", "orders", "rejected", "after 15s", "parked"} <= set(written)
    assert {"orders.retry", "waits 15s", "via retry.orders [retry]", "orders.dlq", "dead letters"} <= set(written)


def test_the_paper_is_as_large_as_the_picture() -> None:
    root = drawn(REJECTING)

    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"


def test_nodes_are_where_the_layout_puts_them() -> None:
    picture = picture_of(REJECTING)
    boxes = {id: node.box for id, node in Layout(picture).nodes.items()}

    nodes = [group for group in of_class(drawn(REJECTING), "node") if group.get("data-node")]

    assert {node.get("data-node") for node in nodes} == set(boxes)
    for node in nodes:
        rect, box = of_class(node, "body")[0], boxes[node.get("data-node", "")]
        assert float(rect.get("x", "")) == pytest.approx(box.x, abs=0.06)
        assert float(rect.get("y", "")) == pytest.approx(box.y, abs=0.06)


def test_an_edge_knows_its_ends() -> None:
    edges = {
        (path.get("data-from"), path.get("data-to"))
        for path in of_class(drawn(REJECTING), "edge")
        if path.get("data-from")
    }

    assert edges == {
        ("exchangeEvents", "queueOrders"),
        ("queueOrders", "queueOrdersRetry"),
        ("queueOrdersRetry", "queueOrders"),
        ("queueOrders", "queueOrdersDlq"),
    }


def test_a_name_that_is_shortened_is_whole_in_its_title() -> None:
    name = "orders." * 30

    root = drawn(Definitions.of(queues=[queue(name)]))

    assert name not in texts(root)
    assert name in [title.text for title in root.iter(f"{_SPACE}title")]


def test_keys_that_are_left_out_are_in_the_title_of_the_edge() -> None:
    root = drawn(Definitions.of([topic("events")], [queue("q")], bound("events", "q", *"abcdefg")))

    assert "a\nb\nc\nd\ne\nf\ng" in [title.text for title in root.iter(f"{_SPACE}title")]


def test_it_can_be_read_to_those_who_do_not_see_it() -> None:
    root = drawn(REJECTING)

    assert root.get("role") == "img"
    assert root.findtext(f"{_SPACE}title") == "Topology: 1 exchange, 1 queue, 1 waiting queue, 1 dead-letter queue"
    assert "orders to orders.retry: rejected." in (root.findtext(f"{_SPACE}desc") or "")


def test_nothing_is_called_nothing() -> None:
    assert drawn(Definitions()).findtext(f"{_SPACE}title") == "Topology: nothing"


def test_it_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    text = svg(picture_of(of_hostile_names()))

    assert not re.search(r"<script|href|url\((?!#)|@import|@font-face|\son\w+=", text)
    assert text.count("http") == 1  # the name of its language


def test_every_arrow_has_the_head_that_it_names() -> None:
    root = drawn(REJECTING)

    wanted = {path.get("marker-end", "").removeprefix("url(#").removesuffix(")") for path in of_class(root, "edge")}

    assert wanted <= {marker.get("id") for marker in root.iter(f"{_SPACE}marker")}


def test_it_has_colours_for_light_and_for_dark() -> None:
    style = drawn(REJECTING).findtext(f"{_SPACE}style") or ""
    light, dark = style.split("@media (prefers-color-scheme: dark)")

    assert ".redrive-topology .paper, .redrive-topology .on-paper { fill: #ffffff }" in light
    assert ".redrive-topology .paper, .redrive-topology .on-paper { fill: #0d1117 }" in dark


def test_every_rule_is_about_this_picture_only() -> None:
    style = drawn(REJECTING).findtext(f"{_SPACE}style") or ""

    selectors = [rule.split("{")[0] for rule in style.splitlines() if "{" in rule and not rule.startswith("@media")]

    assert all(part.strip().startswith(".redrive-topology ") for rule in selectors for part in rule.split(","))


def test_what_a_worker_publishes_looks_different_from_what_the_broker_moves() -> None:
    classes = {path.get("class") for path in of_class(drawn(REJECTING), "edge") if path.get("data-from")}

    assert classes == {"edge flow binding", "edge retry dead-letter", "edge retry return", "edge dead handed"}


def test_the_legend_explains_what_there_is_and_nothing_more() -> None:
    legend = [text for group in of_class(drawn(REJECTING), "legend") for text in texts(group)]

    assert legend == [
        "exchange",
        "queue",
        "waits, then goes on",
        "dead letters",
        "by routing key",
        "moved by the broker",
        "published by a worker",
    ]


def test_the_legend_of_a_narrow_picture_has_several_lines() -> None:
    unrouted = ExchangeDefinition("a", arguments={"alternate-exchange": "b"})
    root = drawn(Definitions.of([unrouted], [queue("q"), dying("r", "gone")], bound("a", "q", "k")))

    lines = {text.get("y") for group in of_class(root, "legend") for text in group.iter(f"{_SPACE}text")}

    assert len(lines) > 1


def test_what_waits_has_a_clock() -> None:
    clocks = [node for node in of_class(drawn(REJECTING), "node") if of_class(node, "clock")]

    assert [node.get("data-node") for node in clocks] == ["queueOrdersRetry"]


def test_a_text_in_letters_of_unknown_width_is_made_to_fit() -> None:
    root = drawn(Definitions.of(queues=[queue("日本語"), queue("orders")]))

    fixed = {text.text: text.get("textLength") for text in root.iter(f"{_SPACE}text")}

    assert fixed["日本語"] is not None
    assert fixed["orders"] is None


def test_an_edge_with_nothing_to_say_has_no_label() -> None:
    root = drawn(Definitions.of([ExchangeDefinition("all", "fanout")], [queue("q")], bound("all", "q")))

    assert len([path for path in of_class(root, "edge") if path.get("data-from")]) == 1
    assert of_class(root, "label") == []


def test_a_label_hides_the_line_behind_it_in_the_colour_of_what_it_stands_on() -> None:
    grounds = {
        texts(label)[0]: next(iter(label)).get("class") for label in of_class(drawn(REJECTING), "label")
    }  # fmt: skip

    assert grounds == {
        "order.*": "on-paper",
        "rejected": "on-group",
        "after 15s": "on-group",
        "parked": "on-group",
    }
