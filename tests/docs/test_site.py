"""The manual as it is built: strictly, with every link and picture in place, and nothing that comes from a network."""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("mkdocs")
from site_reading import PageText, broken, leaves, read_page, style_targets

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build for the whole run, whichever worker comes first."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = built.stdout + built.stderr
    if built.returncode or said.strip():  # quiet: what it says is a warning
        pytest.fail(f"mkdocs build --strict:\n{said}", pytrace=False)


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[str, PageText]:
    return {path.relative_to(site).as_posix(): read_page(path.read_text()) for path in site.rglob("*.html")}


def test_every_link_every_place_on_a_page_and_every_picture_is_there(site: Path, pages: dict[str, PageText]) -> None:
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert sum(len(page.links) for page in pages.values()) > len(pages)
    assert list(broken(pages, files)) == []


def test_no_page_fetches_anything_from_elsewhere(pages: dict[str, PageText]) -> None:
    assert [(at, target) for at, page in pages.items() for target in page.fetched if leaves(target)] == []


def test_no_stylesheet_fetches_anything_from_elsewhere(site: Path) -> None:
    sheets = list(site.rglob("*.css"))
    assert sheets
    assert [(sheet.name, one) for sheet in sheets for one in style_targets(sheet.read_text()) if leaves(one)] == []


def test_every_page_of_docs_is_in_the_navigation() -> None:
    class Loader(yaml.SafeLoader):
        """Reads over what is for Python alone."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)
    navigation = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert there - set(_named(navigation)) == set()


def _named(part: Any) -> Iterator[str]:
    match part:
        case str():
            yield part
        case dict():
            for below in part.values():
                yield from _named(below)
        case list():
            for below in part:
                yield from _named(below)


def test_every_decision_is_in_their_list() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text()
    titles = {path.name: path.read_text().splitlines()[0].partition(". ")[2] for path in folder.glob("0*.md")}
    assert [name for name, title in titles.items() if f". [{title}]({name})" not in listed] == []


# In a browser ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class Reader:
    """Somebody who reads the manual. What their browser asks for, and whatever goes wrong in it, is noted."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.base = base
        self.asked: list[str] = []
        self.wrong: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.set_default_timeout(60_000)  # a busy machine is no reason to fail

    def search(self, words: str) -> str:
        """What the first result is called."""
        self.page.goto(f"{self.base}/index.html")
        # From the disk the index comes when the search is opened, and what is typed before it is there is not heard.
        self.page.locator(".md-search__input").click()
        self.page.locator(".md-search-result__meta", has_text="Type to start").wait_for(state="attached")
        self.page.locator(".md-search__input").press_sequentially(words)
        first = self.page.locator(".md-search-result__item h1, .md-search-result__item h2").first
        first.wait_for(state="attached")
        return str(first.text_content())

    @property
    def outside(self) -> list[str]:
        return [url for url in self.asked if not url.startswith((self.base, "data:", "blob:"))]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("needs Chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(params=["http", "file"])
def reader(request: pytest.FixtureRequest, browser: Any, site: Path) -> Iterator[Reader]:
    """From a server, and from the disk: a manual that came with the package is opened with a double click."""
    base = request.getfixturevalue("served") if request.param == "http" else site.as_uri()
    context = browser.new_context()
    yield Reader(context.new_page(), base)
    context.close()


def test_reading_and_searching_asks_nobody_but_the_site_itself(reader: Reader) -> None:
    for page in ("index.html", "workers.html", "lifecycles.html", "console.html"):
        reader.page.goto(f"{reader.base}/{page}")
        reader.page.wait_for_load_state("networkidle")
    assert "outbox" in reader.search("outbox").lower()
    assert reader.asked
    assert reader.outside == []
    assert reader.wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_as_light_or_dark_as_the_reader_has_it(browser: Any, served: str, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{served}/index.html")
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    context.close()
    brightness = sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) / 3
    assert (brightness > 128) is (scheme == "light")


def test_no_page_is_wider_than_a_phone(browser: Any, served: str, pages: dict[str, PageText]) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, java_script_enabled=True)
    page = context.new_page()
    wide = []
    for at in sorted(one for one in pages if not one.startswith("repository/") and one != "404.html"):
        page.goto(f"{served}/{at}", wait_until="domcontentloaded")
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"):
            wide.append(at)
    context.close()
    assert wide == []
