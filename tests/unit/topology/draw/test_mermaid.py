"""Mermaid that can be parsed, whatever the names are: nothing in a label means anything to it."""

import re

import pytest
from hypothesis import given

from redrive.recovery.retry import Retry, RetryRoute
from redrive.topology import Definitions
from redrive.topology.draw.mermaid import mermaid
from redrive.topology.draw.picture import picture_of
from unit.topology.draw.topologies import any_definitions, bound, dying, orders, queue, topic

_ID = r"[A-Za-z][A-Za-z0-9]*(?:_\d+)?"
_LABEL = r'"(?:[^\W_]|[ .,()_-]|#\d+;|<br/>)*"'
_STATEMENT = re.compile(
    rf"flowchart LR|  subgraph group_{_ID}\[\" \"\]|  end"
    rf"|    ?{_ID}\[{_LABEL}\]|  (?:  )?{_ID}(?:\[{_LABEL}\]|\(\[{_LABEL}\]\))"
    rf"|  {_ID} (?:-->|-\.->)(?:\|{_LABEL}\|)? {_ID}"
    r"|  classDef \w+ [\w:#, -]+|  class [\w,]+ \w+|  linkStyle [\d,]+ stroke:#\w+"
)


def drawn(definitions: Definitions) -> str:
    return mermaid(picture_of(definitions))


def label_of(name: str) -> str:
    """What is written for a queue of that name, without its caption."""
    found = re.search(r'\["(.*)<br/>queue"\]', drawn(Definitions.of(queues=[queue(name)])))
    assert found is not None
    return found[1]


@given(any_definitions)
def test_every_line_is_a_statement_of_the_few_that_are_used(definitions: Definitions) -> None:
    assert [line for line in drawn(definitions).splitlines() if not _STATEMENT.fullmatch(line)] == []


@given(any_definitions)
def test_a_line_with_a_label_has_no_colon(definitions: Definitions) -> None:
    """Mermaid's preprocessor would take `style … : … #…;` for a style and eat its semicolon."""
    assert not any(":" in line for line in drawn(definitions).splitlines() if '"' in line)


@given(any_definitions)
def test_every_subgraph_ends(definitions: Definitions) -> None:
    lines = drawn(definitions).splitlines()

    assert sum(line.startswith("  subgraph ") for line in lines) == lines.count("  end")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("q.orders_10s-eu", "q.orders_10s-eu"),
        ('"', "#34;"),
        ("#35;", "#35;35#59;"),
        ("files.*", "files.#42;"),
        ("<b>", "#60;b#62;"),
        ("a|b", "a#124;b"),
        ("[x]{y}", "#91;x#93;#123;y#125;"),
        ("1. list", "1#46; list"),
        ("- dash", "#45; dash"),
        ("`tick`", "#96;tick#96;"),
        ("_emphasis_", "#95;emphasis#95;"),
        ("fa:fa-car", "fa#58;fa-car"),
        ("two\nlines", "two#92;#8203;nlines"),
        ("日本", "日本"),
        ("🎉", "#127881;"),
    ],
)
def test_what_means_something_to_mermaid_becomes_a_code(name: str, label: str) -> None:
    assert label_of(name) == label


@pytest.mark.parametrize("name", ["end", "q.end", "graph", "10end", "style", "click"])
def test_no_id_has_a_keyword_in_it(name: str) -> None:
    assert not re.search(
        r"(?<![A-Za-z])(end|graph|style|click)", drawn(Definitions.of(queues=[queue(name)])).split("[")[0]
    )


def test_a_queue_and_its_parts_are_a_subgraph() -> None:
    text = drawn(orders(Retry(attempts=3, delay="15s")))

    inside = text[text.index("subgraph group_queueOrders") :].split("  end")[0]

    assert re.findall(r"(queue\w+)\[", inside)[1:] == ["queueOrders", "queueOrdersRetry", "queueOrdersDlq"]


def test_edges_say_why_and_who() -> None:
    text = drawn(orders(Retry(attempts=3, delay="15s", via=RetryRoute.REJECT)))

    assert 'queueOrders -->|"rejected"| queueOrdersRetry' in text
    assert 'queueOrdersRetry -->|"after 15s"| queueOrders' in text
    assert 'queueOrders -.->|"parked"| queueOrdersDlq' in text
    assert 'exchangeEvents -->|"order.#42;"| queueOrders' in text


def test_several_keys_are_several_lines() -> None:
    assert '|"a<br/>b"|' in drawn(Definitions.of([topic("x")], [queue("q")], bound("x", "q", "a", "b")))


def test_each_kind_of_node_has_its_look() -> None:
    text = drawn(Definitions.of([topic("x")], [dying("q", "gone")]))

    assert "class exchangeX exchangeNode" in text
    assert "class queueQ mainNode" in text
    assert "class exchangeGone missingNode" in text
    assert "stroke-dasharray:4 3" in text


def test_edges_are_coloured_by_their_number() -> None:
    picture = picture_of(orders(Retry(attempts=3, delay="15s", via=RetryRoute.REJECT)))

    (dead,) = [number for number, edge in enumerate(picture.edges) if edge.why == "parked"]

    assert f"linkStyle {dead} stroke:#b3261e" in mermaid(picture)


def test_nothing_is_a_flowchart_too() -> None:
    assert drawn(Definitions()) == "flowchart LR\n"
