"""A name is shown so that nothing in it is invisible, and never longer than there is room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.topology.draw.style import LONGEST, Font, cells, is_measurable, shorten, visible

names = st.text(st.characters(), max_size=300)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("q.orders", "q.orders"),
        ("two\nlines", r"two\nlines"),
        ("nul\0", r"nul\x00"),
        ("\u202eright to left", r"\u202eright to left"),
        ("no\u00a0break", r"no\xa0break"),
        ("\ud800", r"\ud800"),
        ("back\\slash", r"back\\slash"),
        (" orders", r"\x20orders"),
        ("orders  ", r"orders\x20\x20"),
        ("in between", "in between"),
        ("   ", r"\x20\x20\x20"),
        ("日本", "日本"),
        ("", "(no name)"),
    ],
)
def test_what_cannot_be_seen_is_written_out(name: str, shown: str) -> None:
    assert visible(name) == shown


def test_a_letter_and_its_accent_are_shown_as_one() -> None:
    assert visible("e\u0301") == "é"


@given(names)
def test_everything_that_is_shown_can_be_printed(name: str) -> None:
    assert visible(name).isprintable()


def test_a_name_with_a_newline_looks_different_from_one_with_a_backslash() -> None:
    assert visible("a\nb") != visible(r"a\nb")


def test_a_long_name_loses_its_middle() -> None:
    assert shorten("company.department.service.orders.retry.15s", 21) == "company.de….retry.15s"


def test_a_name_that_fits_is_whole() -> None:
    assert shorten("x" * LONGEST) == "x" * LONGEST


@given(names)
def test_no_name_is_shown_longer_than_there_is_room(name: str) -> None:
    assert cells(shorten(name)) <= LONGEST


def test_an_ideograph_takes_the_room_of_more_than_one_letter() -> None:
    assert cells("日本") > cells("ab")


def test_letters_that_a_monospaced_font_may_lack_are_known() -> None:
    assert is_measurable("orders…")
    assert is_measurable("commandé")
    assert not is_measurable("日本")


@pytest.mark.parametrize("font", Font)
def test_a_longer_text_is_wider(font: Font) -> None:
    assert 0 < font.width("waits") < font.width("waits 15s")


def test_a_narrow_letter_takes_less_room_than_a_broad_one() -> None:
    assert Font.REASON.width("iiii") < Font.REASON.width("nnnn") < Font.REASON.width("NNNN") < Font.REASON.width("WWWW")


def test_of_a_megabyte_only_the_ends_are_looked_at() -> None:
    assert shorten("a" * 1_000_000 + "z" * 1_000_000, 9) == "aaaa…zzzz"
    assert shorten("\0" * 10_000, 9) == shorten("\0" * 100, 9)
