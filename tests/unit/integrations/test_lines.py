"""What others wrote cannot forge a line, act on a terminal, or tell a password."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.integrations.lines import UNSAFE, bounded, escaped, masked, told

anything = st.text(st.characters(exclude_categories=()))  # halves of characters included


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("all is well", "all is well"),
        ("Größe, 日本", "Größe, 日本"),
        ("two\nlines\r\n", "two\\nlines\\r\\n"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x9b2Jgone", "\\x9b2Jgone"),
        ("\x7f\x00", "\\x7f\\x00"),
        ("user\u202egnp.exe", "user\\u202egnp.exe"),
        ("a\u2028b", "a\\u2028b"),
        ("half \ud83d", "half \\ud83d"),
    ],
    ids=ascii,
)
def test_what_would_act_is_made_visible(text: str, line: str) -> None:
    assert escaped(text) == line


@given(anything)
def test_an_escaped_text_is_one_line_that_can_be_encoded(text: str) -> None:
    line = escaped(text)

    assert UNSAFE.search(line) is None
    assert len(line.splitlines()) <= 1
    line.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://shop:s3cret@host/vhost", "amqp://shop:***@host/vhost"),
        ("amqp://shop:p@ss:word@host/", "amqp://shop:***@host/"),
        ("postgresql+psycopg://:s3cret@[::1]/db and amqps://a:b@c", "postgresql+psycopg://:***@[::1]/db and amqps://a:***@c"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
        ("https://user@host", "https://user@host"),
        ("GET /?access_token=abc&x=1", "GET /?access_token=***&x=1"),
        ("password = hunter2, user = ann", "password = ***, user = ann"),
        ("{'api_key': 'abc', 'Password': \"x\"}", "{'api_key': '***', 'Password': \"***\"}"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("sent Bearer eyJhbGciOi.J9 to it", "sent Bearer *** to it"),
        ("the token has expired", "the token has expired"),
        ("a bearer of news", "a bearer of news"),
        ("TimeoutError: no answer", "TimeoutError: no answer"),
    ],
)  # fmt: skip
def test_passwords_and_tokens_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@given(anything)
def test_masking_twice_changes_nothing_more(text: str) -> None:
    assert masked(masked(text)) == masked(text)


def test_a_text_that_is_too_long_keeps_both_ends() -> None:
    assert bounded("abcdefghij", 10) == "abcdefghij"
    assert bounded("abcdefghijk", 10) == "abcd…hijk"


def test_a_secret_is_masked_before_a_cut_could_hide_that_it_is_one() -> None:
    text = "x" * 1500 + "amqp://u:" + "s" * 1200 + "@host"

    assert "sss" not in told(text)
    assert len(told(text)) <= 2000
