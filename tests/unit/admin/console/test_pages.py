"""One way into the HTML: escaped, always, and with what hides made visible."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError

from redrive.admin.console import rendering
from redrive.admin.console.edit import EditForm, text_in
from redrive.admin.console.forms import form_of
from redrive.errors import ConfigurationError

TEMPLATES = Path(rendering.__file__).parent / "templates"


def shown(template: str, **what: Any) -> str:
    return rendering.environment().from_string(template).render(what)


def test_what_is_shown_is_escaped_and_visible() -> None:
    assert shown("{{ text }}", text="<b>\u202e\x1b") == "&lt;b&gt;\\u202e\\x1b"
    assert shown('<a title="{{ text }}">', text='"><script>') == '<a title="&#34;&gt;&lt;script&gt;">'


def test_what_a_form_sends_back_is_escaped_and_otherwise_as_it_was() -> None:
    assert shown("{{ text|exactly }}", text="<\u202e>") == "&lt;\u202e&gt;"
    assert shown("{{ text|exactly }}", text="\udc80") == "?"


def test_a_name_that_is_not_there_is_a_mistake_not_nothing() -> None:
    with pytest.raises(UndefinedError):
        shown("{{ nothing }}")


async def test_unknown_static_names_are_not_found_and_leave_nothing_behind() -> None:
    assert (await rendering.asset("console.css")).status_code == 200
    tracemalloc.start()
    try:
        for number in range(2000):
            answer = await rendering.asset(f"{number}-{'x' * 200}.css")
            assert answer.status_code == 404
            assert "cache-control" not in answer.headers  # so it is what every answer has: no-store
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100_000


def test_a_time_has_its_moment_in_the_title() -> None:
    noon = datetime(2024, 5, 17, 12, tzinfo=UTC)
    assert shown("{{ now|ago }}", now=noon) == (
        '<time datetime="2024-05-17T12:00:00+00:00" title="2024-05-17 12:00:00 UTC">just now</time>'
    )
    assert shown("{{ none|ago('never <b>') }}", none=None, now=noon) == "never &lt;b&gt;"


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_no_template_switches_escaping_off_or_holds_a_style_or_a_script(path: Path) -> None:
    text = path.read_text()
    for forbidden in (
        "|safe",
        "| safe",
        "autoescape",
        "style=",
        "<style",
        "onclick",
        "javascript:",
        'href="/',
        'src="/',
    ):
        assert forbidden not in text
    assert text.count("<script") == text.count('<script src="{{ to(')


class Sent:
    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks

    async def stream(self) -> Any:
        for chunk in self.chunks:
            yield chunk


async def test_a_form_is_read_as_browsers_send_it() -> None:
    typed = await form_of(Sent(b"ids=1&ids=2&q=", b"a%2Fb+c&empty="))  # type: ignore[arg-type]
    assert typed.getlist("ids") == ["1", "2"]
    assert (typed["q"], typed["empty"]) == ("a/b c", "")


@pytest.mark.parametrize("chunks", [(b"\xff=1",), (b"a=1&" * 3000,), (b"x" * 1024 * 1024,) * 9])
async def test_what_is_no_form_or_too_much_of_one_is_refused(chunks: tuple[bytes, ...]) -> None:
    with pytest.raises(ConfigurationError):
        await form_of(Sent(*chunks))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"a": 1}\n', '{"a": 1}\n'),
        (b"a\r\nb", "a\r\nb"),
        (b"a\r\nb\nc", None),  # a browser would make one of both
        (b"\xff", None),
        (b"a\x00b", None),
        ("a\u202eb".encode(), None),
    ],
)
def test_a_body_is_typed_over_only_if_a_text_field_gives_it_back(body: bytes, text: str | None) -> None:
    assert text_in(body) == text


def test_lines_end_as_they_did_before() -> None:
    def sent(typed: str, was: str) -> bytes | None:
        made = EditForm(typed).transform(was)
        return made(None, None).body  # type: ignore[call-arg, union-attr, return-value, arg-type]

    assert sent("a\r\nc", "a\nb") == b"a\nc"
    assert sent("a\r\nc", "a\r\nb") == b"a\r\nc"
    with pytest.raises(ConfigurationError, match="nothing would change"):
        sent("a\r\nb", "a\nb")
