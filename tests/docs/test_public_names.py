"""The public names: what programs import is public, listed with a signature and a sentence, and typed."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import redrive
from redrive import App
from redrive.checks import option_types
from redrive.recovery.retry import Retry
from redrive.topology import Queue
from redrive.worker.consumer_spec import (
    BatchConsumerOptions,
    BatchSpec,
    ConsumerOptions,
    ConsumerSpec,
    GatheringOptions,
    HandlerOptions,
)
from write_reference import PUBLIC, methods_of, public_names, sentence_of

ROOT = Path(__file__).parents[2]
SHOWN = ("README.md", "docs/**/*.md", "examples/**/*.py", "examples/**/*.md", "src/redrive/cli/init/template/**/*.in")
IMPORT = re.compile(r"^\s*from (redrive[\w.]*) import (\([^)]*\)|[\w, ]+)|^\s*import (redrive[\w.]*)", re.MULTILINE)
# Not for applications: how to run `redrive` as a part of another program, and what an example stops on.
COMMANDS = {"redrive.cli", "redrive.cli.exit_codes"}


def imports() -> Iterator[tuple[str, str, str]]:
    """Yield each import of ours that users see: its file, its module and a name."""
    for path in (path for pattern in SHOWN for path in ROOT.glob(pattern)):
        if path.is_relative_to(ROOT / "docs/decisions"):
            continue
        for module, names, plain in IMPORT.findall(path.read_text()):
            for name in re.findall(r"(\w+)(?: as \w+)?", names) or [""]:
                yield str(path.relative_to(ROOT)), module or plain, name


def test_documentation_and_examples_import_public_names_only() -> None:
    known = {(module, name) for module in PUBLIC for name in public_names(module)}
    private = {
        (file, module, name)
        for file, module, name in imports()
        if (module, name) not in known and module != "redrive.errors" and module not in COMMANDS
        if not (name == "" and module in PUBLIC) and f"{module}.{name}" not in PUBLIC
    }
    assert private == set()


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_sentence(module: str) -> None:
    found = importlib.import_module(module)
    values = {name: getattr(found, name) for name in public_names(module)}
    methods = {f"{name}.{one}": what for name, value in values.items() for one, what in methods_of(value)}

    assert [name for name, value in (values | methods).items() if not sentence_of(value)] == []


def test_each_name_of_the_package_is_loaded_when_it_is_used() -> None:
    program = "import sys, redrive; print('sqlalchemy' in sys.modules, len(dir(redrive)) > 50)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]

    with pytest.raises(AttributeError, match=r"module 'redrive' has no attribute 'Retri', did you mean Retry\?"):
        redrive.Retri  # type: ignore[attr-defined]  # noqa: B018


def test_the_names_for_type_checkers_are_those_at_run_time() -> None:
    tree = ast.parse(Path(redrive.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }

    assert typed == redrive._HOMES
    assert {*typed, "__version__"} == set(redrive.__all__)


# The options ------------------------------------------------------------------------------------------------


def options_in(docstring: str | None) -> set[str]:
    return set(re.findall(r"^ {4,8}(\w+): ", inspect.cleandoc(docstring or ""), re.MULTILINE))


def test_every_option_is_typed() -> None:
    not_options = {"queue", "function", "batch", "dead_ends", "for_dead_letters", "name"}
    of_queue, of_consumer = set(option_types(Queue)) - not_options, set(option_types(ConsumerSpec)) - not_options

    assert set(option_types(HandlerOptions)) == of_consumer
    assert set(option_types(ConsumerOptions)) == of_queue | of_consumer
    assert set(option_types(GatheringOptions)) == set(option_types(BatchSpec))
    assert set(option_types(BatchConsumerOptions)) == of_queue | of_consumer | set(option_types(BatchSpec))


def test_every_option_is_in_the_docstring_that_an_editor_shows() -> None:
    assert options_in(App.consumer.__doc__) == set(option_types(ConsumerOptions))
    assert options_in(App.batch_consumer.__doc__) == set(option_types(GatheringOptions))
    assert all(option in (App.queue.__doc__ or "") for option in set(option_types(Queue)) - {"name", "dead_ends"})


def test_a_retry_says_how_many_attempts_there_are() -> None:
    assert (Retry().attempts, Retry(steps=["1s", "2s"]).attempts, Retry(attempts=5).attempts) == (3, 3, 5)
