from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.recovery.durations import duration, format_duration, format_roughly, milliseconds


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("15s", timedelta(seconds=15)),
        ("500ms", timedelta(milliseconds=500)),
        ("1m30s", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("0.5s", timedelta(milliseconds=500)),
        (" 1 m 30 s ", timedelta(seconds=90)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_a_length_of_time_is_read_as_people_write_it(text: str | timedelta, length: timedelta) -> None:
    assert duration(text) == length


@pytest.mark.parametrize("text", ["", "15", "s", "15 seconds", "1m30", "-5s", "١٥s", "15s x", "1e3s"])
def test_what_is_no_length_of_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"retry.delay .* is not a length of time: write it like '15s'"):
        duration(text, "retry.delay")


def test_a_number_without_a_unit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="delay 15 has no unit"):
        duration(15, "delay")  # type: ignore[arg-type]


def test_an_endless_length_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="longer than anything lasts"):
        duration("99999999999999999999d")


@given(st.integers(0, 2**40))
def test_the_brief_form_reads_back(count: int) -> None:
    length = timedelta(milliseconds=count)
    assert duration(format_duration(length)) == length
    assert milliseconds(length) == count


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (timedelta(milliseconds=300), "0s"),
        (timedelta(seconds=3, milliseconds=700), "3s"),
        (timedelta(seconds=90), "1m30s"),
        (timedelta(hours=2, minutes=5, seconds=14, milliseconds=890), "2h5m"),
        (timedelta(days=2, hours=4, minutes=3), "2d4h"),
        (timedelta(days=2), "2d"),
    ],
)
def test_roughly_leaves_out_what_nobody_minds(length: timedelta, said: str) -> None:
    assert format_roughly(length) == said
