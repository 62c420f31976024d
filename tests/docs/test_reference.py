"""The reference is what the code says today, and says something of everything."""

from __future__ import annotations

import re

import pytest

import write_reference
from redrive import environment
from redrive.cli.explain import Explanation, everything
from redrive.recovery.history import HeaderNames
from write_reference import DOCS, FOLDER, pages, settings_of

PAGES = pages()


def test_the_committed_pages_are_what_the_code_says() -> None:
    kept = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert kept == PAGES, "run make reference"


def anchors(text: str) -> set[str]:
    """Of the headings that are names: their anchors are the names themselves, wherever they are rendered."""
    headings = re.findall(r"^#+ ([a-z0-9 -]+)$", text, re.MULTILINE | re.IGNORECASE)
    return {heading.lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("known", list(everything()), ids=lambda known: f"{known.kind} {known.name}")
def test_everything_that_can_be_explained_has_its_place_on_its_page(known: Explanation) -> None:
    page, _, anchor = known.page.partition("#")
    assert anchor in anchors((DOCS.parent / page).read_text())


@pytest.mark.parametrize("kind", [each[2] for each in write_reference._SETTINGS])
def test_every_setting_says_what_it_means(kind: type) -> None:
    found = settings_of(kind)
    assert found
    assert [one.name for one in found if not one.meaning] == []


def test_every_environment_variable_is_described() -> None:
    named = {value for name, value in vars(environment).items() if name.isupper() and str(value).startswith("REDRIVE_")}
    assert named == set(environment.VARIABLES)


def test_every_setting_that_a_variable_stands_for_is_one() -> None:
    kinds = {title: kind for title, _, kind in write_reference._SETTINGS}
    for name, variable in environment.VARIABLES.items():
        if variable.setting is not None:
            title, _, setting = variable.setting.partition(".")
            assert setting in {one.name for one in settings_of(kinds[title])}, name


def test_every_header_that_is_written_is_listed() -> None:
    written = {value for name, value in vars(HeaderNames).items() if name.isupper()}
    assert len(written) > 20
    assert [name for name in written if f"| `{name}` |" not in PAGES["headers.md"]] == []


def test_no_cell_of_a_table_is_cut_by_what_stands_in_it() -> None:
    for name, text in PAGES.items():
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
            assert len(widths) == 1, f"{name}: {table[:200]}"


@pytest.mark.parametrize("name", ["cli.md", "rest.md", "metrics.md", "logs.md", "headers.md"])
def test_nothing_is_listed_without_what_it_means(name: str) -> None:
    assert re.findall(r"^\|.*\|  \|$", PAGES[name], re.MULTILINE) == []
