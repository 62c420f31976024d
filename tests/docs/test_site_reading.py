"""The checks of the site find what they are for."""

import pytest

from site_reading import broken, leaves, read_page, style_targets


def test_what_a_browser_fetches_is_told_from_what_somebody_may_click() -> None:
    page = read_page(
        """<link rel="stylesheet" href="a.css"><link rel="canonical" href="https://b"><script src="c.js"></script>
        <a href="d.html">d</a><img src="e.png" srcset="f.png 1x, g.png 2x"><link rel="preconnect" href="https://h">"""
    )
    assert page.fetched == ["a.css", "c.js", "e.png", "f.png", "g.png", "https://h"]
    assert page.links == ["d.html"]


def test_a_style_fetches_too() -> None:
    assert read_page('<p style="background: url(a.png)">').fetched == ["a.png"]
    assert read_page('<style>@import "b.css";</style><p>url(no)</p>').fetched == ["b.css"]


def test_a_stylesheets_targets_are_its_imports_and_urls_but_not_what_it_holds_itself() -> None:
    text = "@import 'a.css'; p { background: url(\"b.png\") } q { mask: url(data:image/svg+xml,x) } r { clip: url(#c) }"
    assert style_targets(text) == ["a.css", "b.png"]


@pytest.mark.parametrize("target", ["https://x/y.js", "//x/y.js", "HTTP://x", "mailto:a@b", "javascript:x"])
def test_a_scheme_or_a_host_leads_out_of_the_site(target: str) -> None:
    assert leaves(target)


@pytest.mark.parametrize("target", ["a.html", "../a.html", "/a.html", "#b", "a.html?x=1:2", "data:image/png;base64,x"])
def test_a_path_does_not(target: str) -> None:
    assert not leaves(target)


def test_a_site_in_which_everything_is_there_has_nothing_broken() -> None:
    pages = {
        "index.html": read_page('<h2 id="top">x</h2><a href="#top">x</a><a href="guide/a%20b.html#c">x</a>'),
        "guide/a b.html": read_page(
            '<h2 id="c">x</h2><img src="../d.png"><a href="..">x</a><a href="/index.html">x</a>'
        ),
    }
    assert list(broken(pages, {"index.html", "guide/a b.html", "d.png"})) == []


def test_a_missing_file_a_missing_place_and_a_missing_picture_are_found_each_with_its_page() -> None:
    pages = {
        "index.html": read_page('<a href="gone.html">x</a><a href="guide/a.html#gone">x</a>'),
        "guide/a.html": read_page('<img src="gone.png"><a href="#gone">x</a>'),
    }
    assert list(broken(pages, {"index.html", "guide/a.html"})) == [
        "index.html: gone.html: there is no such file",
        "index.html: guide/a.html#gone: there is no such place on guide/a.html",
        "guide/a.html: gone.png: there is no such file",
        "guide/a.html: #gone: there is no such place on guide/a.html",
    ]


def test_what_is_outside_of_the_site_is_not_judged() -> None:
    assert list(broken({"index.html": read_page('<a href="https://example.org/">x</a>')}, {"index.html"})) == []
