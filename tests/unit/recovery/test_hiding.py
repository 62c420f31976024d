"""Bodies without their secrets. What is recognised as one is in `test_redaction.py`."""

import gzip
import zlib

import pytest

from redrive.recovery.compression import MOST_READ, compress, decompress
from redrive.recovery.hiding import hide_body

SECRET = b'{"password": "hunter2", "order": 7}'


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_secret_in_a_compressed_body_is_hidden_and_the_body_stays_compressed(encoding: str) -> None:
    hidden = hide_body(compress(SECRET, encoding), "application/json", content_encoding=encoding)

    shown = decompress(hidden, encoding, MOST_READ)
    assert (shown.problem, shown.truncated) == ("", False)
    assert b"hunter2" not in shown.body
    assert b'"order":7' in shown.body.replace(b" ", b"")


@pytest.mark.parametrize("body", [gzip.compress(b'{"order": 7}'), zlib.compress(b'{"order": 7}')])
def test_a_compressed_body_without_secrets_is_returned_as_it_is(body: bytes) -> None:
    encoding = "gzip" if body.startswith(b"\x1f\x8b") else "deflate"

    assert hide_body(body, "application/json", content_encoding=encoding) is body


def test_what_is_not_read_of_a_compressed_body_is_not_shown() -> None:
    beyond = b"x" * (MOST_READ + 10) + b" password=hunter2"

    hidden = hide_body(gzip.compress(beyond, compresslevel=0), None, content_encoding="gzip")

    assert gzip.decompress(hidden) == b"x" * MOST_READ


def test_a_body_that_is_not_compressed_as_it_says_is_hidden_as_it_is() -> None:
    assert b"hunter2" not in hide_body(SECRET, "application/json", content_encoding="gzip")
