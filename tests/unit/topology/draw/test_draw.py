"""From definitions to text, in each format."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.recovery.retry import Retry
from redrive.topology import Definitions, Exchange, Queue, Server, expand
from redrive.topology import draw as package
from redrive.topology.draw import FORMATS, NodeKind, draw, picture_of
from topology_systems import SYSTEMS, system
from unit.topology.draw.topologies import any_definitions, edges, expanded, of_hostile_names

formats = pytest.mark.parametrize("format", FORMATS)


@pytest.mark.parametrize(
    ("format", "beginning"), [("mermaid", "flowchart LR\n"), ("dot", "digraph topology {\n"), ("svg", "<svg xmlns=")]
)
def test_each_format_begins_as_it_should(format: str, beginning: str) -> None:
    assert draw(Definitions(), format).startswith(beginning)


def test_a_format_that_is_nearly_right_is_answered_with_the_right_one() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown format 'mermaids', did you mean 'mermaid'\?"):
        draw(Definitions(), "mermaids")


def test_an_unknown_format_is_answered_with_all_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown format 'png', want one of mermaid, dot, svg"):
        draw(Definitions(), "png")


@given(any_definitions, st.sampled_from(sorted(FORMATS)))
def test_whatever_is_drawn_can_be_written_to_a_file(definitions: Definitions, format: str) -> None:
    draw(definitions, format).encode()


@formats
def test_the_same_definitions_give_the_same_picture_in_any_order(format: str) -> None:
    definitions = of_hostile_names()
    turned = Definitions(definitions.exchanges[::-1], definitions.queues[::-1], definitions.bindings[::-1])

    assert draw(turned, format) == draw(definitions, format)


@formats
def test_another_process_draws_the_same_picture(format: str) -> None:
    """Sets have another order in each process: none of them may show."""
    program = (
        "import sys\n"
        "from redrive.topology.draw import draw\n"
        "from unit.topology.draw.topologies import of_hostile_names\n"
        f"sys.stdout.buffer.write(draw(of_hostile_names(), {format!r}).encode())"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)

    pictures = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert pictures == {draw(of_hostile_names(), format).encode()}


@formats
def test_two_hundred_queues_are_drawn_quickly(format: str) -> None:
    events = Exchange("events", "topic")
    definitions = expanded(
        *(Queue(f"q.{number}", events.on(f"key.{number}"), retry=Retry(steps=["5s", "1m"])) for number in range(200))
    )
    start = time.process_time()

    draw(definitions, format)

    assert time.process_time() - start < 5


@formats
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_example_can_be_drawn(name: str, format: str) -> None:
    definitions = expand(system(name), Server.of("4.3"))

    picture = draw(definitions, format)

    assert all(queue in picture for queue in ("dlq", "retry"))


@pytest.mark.parametrize("name", SYSTEMS)
def test_in_every_example_each_queue_has_its_retries_and_its_dead_letters(name: str) -> None:
    picture = picture_of(expand(system(name), Server.of("4.3")))

    kinds = {node.id: node.kind for node in picture.nodes}
    assert {group.main for group in picture.groups} == {id for id, kind in kinds.items() if kind is NodeKind.MAIN}
    assert all(len(group.dead) == 1 for group in picture.groups)
    for group in picture.groups:
        retries = [edge for edge in picture.edges if edge.source == group.main and edge.why in ("retry", "rejected")]
        returns = [edge for edge in picture.edges if edge.target == group.main and edge.why.startswith("after ")]
        assert {edge.target for edge in retries} == {edge.source for edge in returns} != set()
    assert not {NodeKind.MISSING, NodeKind.PLAIN} & set(kinds.values())


def test_the_seven_queues_of_uploads_read_as_its_document_does() -> None:
    said = edges(expand(system("uploads"), Server.of("4.3")))

    assert {
        "domain.commands → q.upload.commands: commands.file.reprocess.*, commands.upload.#",
        "domain.events → q.validator: files.uploaded.*",
        "domain.events → q.notification: files.rejected.*, processing.#",
        "q.validator → q.validator.retry: rejected",
        "q.validator.retry → q.validator: after 15s",
        "q.validator → q.validator.dlq: parked",
    } <= said


@pytest.mark.parametrize("module", sorted(Path(package.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_nothing_here_does_io_or_asks_a_clock(module: Path) -> None:
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(module.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    assert not imported & {"asyncio", "socket", "ssl", "time", "random", "logging", "uuid", "os", "pathlib"}
