"""Compressed bodies are read within bounds, whatever they become."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.deadletters.body_preview import MOST_PARSED, BodyKind, show
from redrive.deadletters.compression import MOST_GROWTH, Plain, decompress

BODY = b'{"order": 7, "password": "hunter2"}'
MEGABYTE = 1024 * 1024


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


COMPRESSED = [
    ("gzip", gzip.compress(BODY, mtime=0)),
    ("X-Gzip ", gzip.compress(BODY, mtime=0)),
    ("deflate", zlib.compress(BODY)),
    ("deflate", raw_deflate(BODY)),
]


@pytest.mark.parametrize(("encoding", "body"), COMPRESSED, ids=["gzip", "x-gzip", "zlib", "raw"])
def test_a_compressed_body_is_read_as_what_it_stands_for(encoding: str, body: bytes) -> None:
    assert decompress(body, encoding, MEGABYTE) == Plain(BODY)

    shown = show(body, "application/json", content_encoding=encoding)

    assert (shown.kind, shown.truncated, shown.note) == (BodyKind.JSON, False, "")
    assert '"order": 7' in shown.text
    assert "hunter2" not in shown.text


@pytest.mark.parametrize("encoding", [None, "", "identity", "utf-8", "UTF-8", "us-ascii", "binary"])
def test_what_is_not_compressed_stays_as_it_is(encoding: str | None) -> None:
    assert decompress(BODY, encoding, MEGABYTE) == Plain(BODY)
    assert show(BODY, "application/json", content_encoding=encoding).kind is BodyKind.JSON


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, br", "\x1b[2j"])
def test_a_body_in_an_unknown_encoding_is_shown_as_bytes(encoding: str) -> None:
    shown = show(BODY, "application/json", content_encoding=encoding)

    assert shown.kind is BodyKind.BINARY
    assert f"its content encoding {encoding!r} is not known" in shown.note
    assert "\x1b" not in shown.note
    assert "hunter2" not in show(b"password=hunter2", content_encoding=encoding).text


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_is_not_what_it_is_called_is_shown_as_bytes(encoding: str) -> None:
    shown = show(b"\xff\xff\xff plain", "application/json", content_encoding=encoding)

    assert (shown.kind, shown.note) == (BodyKind.BINARY, f"called {encoding}, and it is not, so its bytes are shown")


def test_a_body_that_was_cut_off_is_shown_as_far_as_it_goes() -> None:
    text = " ".join(f"n{number}" for number in range(2000)).encode()

    shown = show(gzip.compress(text)[:-200], "text/plain", content_encoding="gzip")

    assert shown.truncated
    assert shown.text.startswith("n0 n1 n2 ")
    assert "incomplete" in shown.note


def test_a_bomb_is_decompressed_no_further_than_it_may_grow() -> None:
    bomb = gzip.compress(b"a" * 50 * MEGABYTE)
    assert len(bomb) < 60_000

    plain = decompress(bomb, "gzip", 1 << 40)

    assert (len(plain.body), plain.truncated) == (MOST_GROWTH * len(bomb), True)
    assert len(decompress(bomb, "gzip", MEGABYTE).body) == MEGABYTE
    shown = show(bomb, "application/json", content_encoding="gzip", limit=1000)
    assert shown.truncated
    assert len(shown.text) <= 1000


def test_json_that_is_too_large_is_shown_in_its_beginning() -> None:
    body = gzip.compress(b"[" + b", ".join(b"%d" % number for number in range(MOST_PARSED // 4)) + b"]")

    shown = show(body, "application/json", content_encoding="gzip")

    assert (shown.kind, shown.truncated) == (BodyKind.TEXT, True)
    assert shown.text.startswith("[0, 1, 2")


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "br"]), st.integers(1, 1000))
def test_whatever_is_called_compressed_is_shown_within_the_bound(body: bytes, encoding: str, most: int) -> None:
    assert len(decompress(body, encoding, most).body) <= max(most, len(body))
    assert show(body, None, content_encoding=encoding)
