"""Links that lead out of docs/ lead somewhere in the site as well."""

from pathlib import Path

import pytest

from site_sources import links, needed, page_of, place, relink


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "CHANGELOG.md": "# Changelog\n",
        "docs/workers.md": "# Workers\n",
        "docs/decisions/0001-why.md": "# 1. Why\n",
        "examples/raffle/README.md": "# Raffle\n\nSee [the guide](../../docs/workers.md#batches) and [api](api.py).\n",
        "examples/raffle/api.py": '"""The API.\n\nMore.\n"""\n',
        "examples/raffle/__pycache__/api.pyc": "",
        "chaos/systems/redrive.py": "x = '```'\n",
        "chaos/results.jsonl": "x" * 70_000,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("docs/workers.md", "workers.md"),
        ("docs/decisions", "decisions/index.md"),
        ("CHANGELOG.md", "changelog.md"),
        ("examples/raffle", "repository/examples/raffle/index.md"),
        ("examples/raffle/README.md", "repository/examples/raffle/index.md"),
        ("examples/raffle/api.py", "repository/examples/raffle/api.py.md"),
        ("chaos/results.jsonl", "repository/chaos/results.jsonl"),
        ("gone.md", None),
    ],
)
def test_everything_in_the_repository_has_one_place_in_the_site(root: Path, path: str, there: str | None) -> None:
    assert place(path, root) == there


def test_a_folder_of_the_manual_with_a_readme_is_that(root: Path) -> None:
    (root / "docs/decisions/README.md").write_text("# Decisions\n")
    assert place("docs/decisions", root) == "decisions/README.md"


def test_links_are_found_and_what_looks_like_one_in_code_is_not() -> None:
    text = "[a](a.md#b) ![b](b.png) `[c](c.md)` [d](https://d) [e](#e)\n```\n[f](f.md)\n```\n[g](../g)"
    assert list(links(text)) == ["a.md", "b.png", "../g"]


def test_a_link_out_of_docs_leads_to_the_page_of_what_it_names(root: Path) -> None:
    text = "[x](../examples/raffle) [y](decisions/0001-why.md#z) `[x](../examples/raffle)`"
    moved = "[x](repository/examples/raffle/index.md) [y](decisions/0001-why.md#z) `[x](../examples/raffle)`"
    assert relink(text, "docs/workers.md", "workers.md", root) == moved


def test_the_links_of_a_page_from_elsewhere_are_seen_from_where_it_stands_now(root: Path) -> None:
    text, origin = page_of("examples/raffle", root)
    page = relink(text, origin, "repository/examples/raffle/index.md", root)
    assert "[the guide](../../../workers.md#batches)" in page
    assert "- [api.py](api.py.md): The API." in page
    assert "pyc" not in page


def test_a_link_to_what_is_not_there_is_left_for_the_strict_build_to_find(root: Path) -> None:
    assert relink("[x](../gone.md) [y](../../out.md)", "docs/a.md", "a.md", root) == "[x](../gone.md) [y](../../out.md)"


def test_a_text_with_fences_in_it_is_shown_whole(root: Path) -> None:
    text, _ = page_of("chaos/systems/redrive.py", root)
    assert "````python\nx = '```'\n````" in text


def test_pages_are_made_of_what_is_linked_to_and_of_what_that_links_to(root: Path) -> None:
    made = needed([("docs/workers.md", "[x](../examples/raffle) [y](workers.md) [z](../chaos/results.jsonl)")], root)
    assert made == {
        "repository/examples/raffle/index.md": "examples/raffle",
        "repository/examples/raffle/api.py.md": "examples/raffle/api.py",
        "repository/chaos/results.jsonl": "chaos/results.jsonl",
    }
