"""A cursor is good for the list it came from, and for nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.admin.api.cursors import read_cursor, write_cursor
from redrive.errors import ConfigurationError


@given(st.integers(0, 10**17))
def test_a_place_comes_back(place: int) -> None:
    assert read_cursor("messages", write_cursor("messages", place)) == str(place)


@given(st.text(max_size=60))
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="next_cursor"):
        read_cursor("messages", text)


@pytest.mark.parametrize("other", ["items", "audit", "operations"])
def test_that_of_another_list_is_refused(other: str) -> None:
    with pytest.raises(ConfigurationError):
        read_cursor("messages", write_cursor(other, 5))


@pytest.mark.parametrize("place", ["", "-1", "x", "9" * 30, "²"])
def test_a_place_that_is_none_is_refused(place: str) -> None:
    with pytest.raises(ConfigurationError):
        read_cursor("messages", write_cursor("messages", place))
