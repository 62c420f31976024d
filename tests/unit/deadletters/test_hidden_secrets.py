"""Bodies without their secrets. What is recognised as one is in `test_redaction.py`."""

import gzip

import pytest

from redrive.deadletters.compression import MOST_READ, compress, decompress
from redrive.deadletters.dead_letter import read_summary
from redrive.deadletters.hidden_secrets import hide_body, hide_summary
from redrive.wire.properties import Properties

SECRET = b'{"password": "hunter2", "order": 7}'


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_secret_in_a_compressed_body_is_hidden_and_the_body_stays_compressed(encoding: str) -> None:
    hidden = hide_body(compress(SECRET, encoding), "application/json", content_encoding=encoding)

    shown = decompress(hidden, encoding, MOST_READ)
    assert (shown.problem, shown.truncated) == ("", False)
    assert b"hunter2" not in shown.body
    assert b'"order":7' in shown.body.replace(b" ", b"")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_body_without_secrets_is_returned_as_it_is(encoding: str) -> None:
    body = compress(b'{"order": 7}', encoding)

    assert hide_body(body, "application/json", content_encoding=encoding) is body


def test_what_is_not_read_of_a_compressed_body_is_not_shown() -> None:
    beyond = b"x" * (MOST_READ + 10) + b" password=hunter2"

    hidden = hide_body(gzip.compress(beyond, compresslevel=0), None, content_encoding="gzip")

    assert gzip.decompress(hidden) == b"x" * MOST_READ


def test_a_body_that_is_not_compressed_as_it_says_is_hidden_as_it_is() -> None:
    assert b"hunter2" not in hide_body(SECRET, "application/json", content_encoding="gzip")


@pytest.mark.parametrize("before", range(178, 200))
def test_a_card_number_at_the_cut_of_an_error_text_is_hidden(before: int) -> None:
    card = "4111 1111 1111 1111"
    error = {"x-redrive-reason": "exhausted", "x-redrive-message": "x" * before + " " + card + " is blocked"}
    letter = read_summary(Properties(headers=error).encode(), b"", "orders.dlq", 1)

    shown = hide_summary(letter).error_message

    assert sum(character.isdigit() for character in shown) < 7
    assert letter.error_message.startswith("x" * before)


def test_a_number_at_the_end_of_a_whole_error_text_is_shown() -> None:
    error = {"x-redrive-reason": "exhausted", "x-redrive-message": "no such order: 1234567890"}
    letter = read_summary(Properties(headers=error).encode(), b"", "orders.dlq", 1)

    assert hide_summary(letter).error_message == "no such order: 1234567890"
