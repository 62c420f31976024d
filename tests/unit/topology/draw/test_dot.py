"""DOT that Graphviz can read, whatever the names are."""

import re
import shutil
import subprocess

import pytest
from hypothesis import given

from redrive.recovery.retry import Retry, RetryRoute
from redrive.topology import Definitions
from redrive.topology.draw.dot import dot
from redrive.topology.draw.picture import picture_of
from unit.topology.draw.topologies import any_definitions, bound, of_hostile_names, orders, queue, topic

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def drawn(definitions: Definitions) -> str:
    return dot(picture_of(definitions))


def without_strings(text: str) -> str:
    return _STRING.sub("S", text)


@given(any_definitions)
def test_every_string_is_closed_on_its_line(definitions: Definitions) -> None:
    assert not any('"' in without_strings(line) for line in drawn(definitions).splitlines())


@given(any_definitions)
def test_whatever_names_say_the_rest_is_made_of_known_words(definitions: Definitions) -> None:
    words = set(re.findall(r"[A-Za-z]+", without_strings(drawn(definitions))))

    assert words <= {
        *(
            "digraph",
            "topology",
            "graph",
            "node",
            "edge",
            "subgraph",
            "rankdir",
            "LR",
            "fontname",
            "nodesep",
            "ranksep",
        ),
        *("shape", "box", "fontsize", "margin", "arrowsize", "label", "tooltip", "style", "fillcolor", "color", "S"),
        *("fontcolor", "dashed", "dotted", "constraint", "false"),
    }


@given(any_definitions)
def test_braces_are_balanced(definitions: Definitions) -> None:
    text = without_strings(drawn(definitions))

    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ('say "hello"', r'"say \"hello\"\nqueue"'),
        ("back\\", r'"back\\\\\nqueue"'),
        ("two\nlines", r'"two\\nlines\nqueue"'),
        ("R&D", r'"R&amp;D\nqueue"'),
        ("<b>", r'"<b>\nqueue"'),
    ],
)
def test_a_hostile_name_is_quoted(name: str, label: str) -> None:
    assert f"label={label}" in drawn(Definitions.of(queues=[queue(name)]))


def test_a_queue_and_its_parts_are_a_cluster() -> None:
    text = drawn(orders(Retry(attempts=3, delay="15s")))

    cluster = text[text.index('subgraph "cluster_queueOrders"') :].split("}")[0]

    assert re.findall(r'"(queue\w+)" \[', cluster) == ["queueOrders", "queueOrdersRetry", "queueOrdersDlq"]


def test_edges_say_why() -> None:
    text = drawn(orders(Retry(attempts=3, delay="15s", via=RetryRoute.REJECT)))

    assert '"queueOrders" -> "queueOrdersRetry" [label="rejected"' in text
    assert re.search(r'"queueOrdersRetry" -> "queueOrders" \[label="after 15s".*constraint=false\]', text)
    assert re.search(r'"queueOrders" -> "queueOrdersDlq" \[label="parked".*style=dashed\]', text)


def test_several_keys_are_several_lines() -> None:
    assert r'label="a\nb"' in drawn(Definitions.of([topic("x")], [queue("q")], bound("x", "q", "a", "b")))


def test_a_long_name_is_whole_in_the_tooltip() -> None:
    assert f'tooltip="{"x" * 255}"' in drawn(Definitions.of(queues=[queue("x" * 255)]))


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize(
    "definitions",
    [Definitions(), orders(Retry(steps=["30s", "2m"])), of_hostile_names()],
    ids=["nothing", "orders", "hostile names"],
)
def test_graphviz_reads_it_without_a_word(definitions: Definitions) -> None:
    done = subprocess.run(["dot", "-Tsvg"], input=drawn(definitions).encode(), capture_output=True, check=True)

    assert done.stderr == b""
