"""Words that the glossary and the style of the project replace stay away.

The first list holds everywhere in the product: docstrings, comments, messages, help and templates. The second holds in
what was rewritten already; a package joins DONE when its sentences are clean.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PRODUCT = Path(__file__).parents[2] / "src/redrive"

EVERYWHERE = {
    r"anew": "again",
    r"for ever": "indefinitely",
    r"in earnest": "in production",
    r"in (?:its |their |his |our |other )?hands": "unacknowledged, locked",
    r"mend(?:s|ed|ing)?": "fix",
    r"bur(?:y|ies|ied|ying)": "park",
    r"part(?:s|ed)? with": "detach, disconnect",
    r"(?:go|goes|went|going) round": "wait again",
    r"hears? of": "be notified, read",
    r"the urgent": "messages of a higher priority",
}
DONE = {
    r"nobody|somebody|anybody|everybody|who(?:m|se)?ever": "name the actor",
    r"(?:is|are|be|was) told": "is reported, contains",
    r"so many": "N, how many",
    r"under way": "in progress",
    r"what became of": "the outcome of",
    r"beside": "next to, in addition to",
    r"the story": "the failure record",
    r"is away": "is unavailable",
}
REWRITTEN = (
    "admin/executor",
    "broker/exchanges",
    "broker/methods",
    "connected_app.py",
    "demo",
    "environment.py",
    "inspection",
    "router.py",
    "sync.py",
    "text.py",
    "topology/draw",
    "wire",
    "worker",
)


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def files(path: Path) -> list[Path]:
    return [path] if path.is_file() else list(path.rglob("*"))


def found(banned: dict[str, str], *folders: str) -> list[str]:
    pattern = re.compile(r"(?<![\w-])(" + "|".join(banned) + r")(?![\w-])", re.IGNORECASE)
    paths = [path for folder in folders for path in files(PRODUCT / folder) if path.suffix in {".py", ".html"}]
    return [
        f"{path.relative_to(PRODUCT)}:{line}: {hit[0]!r}"
        for path in paths
        for line, text in sentences(path)
        for hit in pattern.finditer(text)
    ]


def test_the_worst_words_are_gone() -> None:
    assert not found(EVERYWHERE, "."), f"write instead: {EVERYWHERE}"


@pytest.mark.parametrize("folder", REWRITTEN)
def test_the_words_of_what_was_rewritten(folder: str) -> None:
    assert not found(DONE, folder), f"write instead: {DONE}"
