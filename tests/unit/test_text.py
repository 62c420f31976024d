"""What others wrote cannot forge a line, act on a terminal, or tell a password."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.text import (
    did_you_mean,
    elide_lines,
    elide_middle,
    escape_line,
    group_digits,
    loggable,
    mask,
    one_line,
    pluralise,
    printable,
    printable_json,
    truncate,
)

# Controls, direction marks, separators of lines and paragraphs, and halves of characters, which cannot be encoded.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

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
def test_a_single_line_has_escapes_for_what_would_act(text: str, line: str) -> None:
    assert escape_line(text) == line


@given(anything)
def test_an_escaped_text_is_one_line_that_can_be_encoded(text: str) -> None:
    line = escape_line(text)

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
    assert mask(text) == shown


@given(anything)
def test_masking_twice_changes_nothing_more(text: str) -> None:
    assert mask(mask(text)) == mask(text)


def test_a_text_that_is_too_long_keeps_both_ends() -> None:
    assert elide_middle("abcdefghij", 10) == "abcdefghij"
    assert elide_middle("abcdefghijk", 10) == "abcd…hijk"


def test_a_secret_is_masked_before_a_cut_could_hide_that_it_is_one() -> None:
    text = "x" * 1500 + "amqp://u:" + "s" * 1200 + "@host"

    assert "sss" not in loggable(text)
    assert len(loggable(text)) <= 2000


# Characters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("\x00\x7f\x9b\r", "\\x00\\x7f\\x9b\\x0d"),
        ("\u2028\U000e0001\ud800", "\\u2028\\U000e0001\\ud800"),
        ("plain ü 漢字\u3000\xa0\n\t", "plain ü 漢字\u3000\xa0\n\t"),
    ],
)
def test_characters_that_do_things_are_shown_and_others_are_left(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(anything)
def test_printable_json_means_what_it_meant(text: str) -> None:
    document = json.dumps(text, ensure_ascii=False)

    assert printable_json(document).isprintable()
    assert json.loads(printable_json(document)) == text


def test_a_table_cell_is_one_line_of_at_most_so_many_characters() -> None:
    assert one_line("two\nlines") == "two lines"
    assert one_line("abcdefg", 6) == "abcde…"
    assert one_line(None) == ""


# Truncating -----------------------------------------------------------------------------------------------


@given(anything, st.integers(1, 20))
def test_truncated_text_fits_can_be_encoded_and_holds_no_control_characters(text: str, most: int) -> None:
    made = truncate(text, most)

    assert len(made) <= most
    assert "\0" not in made
    assert "\x1b" not in made
    made.encode()


@given(anything, st.integers(1, 20))
def test_truncating_twice_changes_nothing_more(text: str, most: int) -> None:
    assert truncate(truncate(text, most), most) == truncate(text, most)


def test_text_that_was_cut_says_so() -> None:
    assert truncate("abcdef", 6) == "abcdef"
    assert truncate("abcdefg", 6) == "abcde…"


def test_lines_stay_lines() -> None:
    assert truncate("a\n\tb\r\0", 99) == "a\n\tb\\x0d\\x00"


@given(st.text(st.characters(codec="utf-8") | st.just("\n")), st.integers(0, 300))
def test_text_that_is_cut_fits(text: str, most: int) -> None:
    cut = elide_lines(text * 5, most)

    assert len(cut.encode()) <= most
    assert cut == text * 5 or " bytes cut ...\n" in cut or cut == ""


@given(st.lists(st.text("aä.", max_size=30), min_size=50))
def test_lines_are_kept_whole_and_what_is_missing_adds_up(lines: list[str]) -> None:
    text = "".join(f"line {line}\n" for line in lines)
    cut = elide_lines(text, 250)

    head, _, rest = cut.partition("  ... ")
    number, _, tail = rest.partition(" bytes cut ...\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(number) == len(text.encode()) - len(head.encode()) - len(tail.encode())
    assert head.endswith("\n")
    assert text.removesuffix(tail).endswith("\n")


def test_one_endless_line_is_elided_in_the_middle() -> None:
    cut = elide_lines("a" * 500 + "b" * 500, 100)

    assert cut.startswith("aaa")
    assert cut.endswith("bbb")
    assert cut.splitlines()[1].endswith(" bytes cut ...")


def test_what_fits_is_not_cut() -> None:
    assert elide_lines("ä" * 10, 20) == "ä" * 10
    assert elide_lines("ä" * 10, 19) == ""


# Phrases --------------------------------------------------------------------------------------------------


def test_did_you_mean_names_the_most_similar_or_nothing() -> None:
    assert did_you_mean("quue", ["queue", "exchange"]) == ", did you mean queue?"
    assert did_you_mean("quue", ["queue"], shown=repr) == ", did you mean 'queue'?"
    assert did_you_mean("xyz", ["queue"], ": want queue") == ": want queue"


def test_counts_agree_with_their_noun() -> None:
    assert pluralise(1, "queue") == "1 queue"
    assert pluralise(2, "entry", "entries") == "2 entries"
    assert pluralise(12000, "queue", shown=group_digits) == "12 000 queues"
