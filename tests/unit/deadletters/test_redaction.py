"""Secrets are hidden by their keys and by their looks, and what an operator searches by is not."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.deadletters.redaction import MOST_DEPTH, REDACTED, Redaction, mask, redact, redact_text

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r"
CARD = "4111 1111 1111 1111"

SECRET_KEYS = [
    *("password", "Password", "userPassword", "user_password", "PASSWORD2", "userpassword", "passwd", "pwd", "senha"),
    *("token", "accessToken", "access_token", "x-token-2", "refreshtoken", "TOKENS", "secret", "client_secret"),
    *("authorization", "Authorization", "Proxy-Authorization", "auth", "api_key", "apiKey", "X-Api-Key", "privateKey"),
    *("cookie", "Set-Cookie", "sessionId", "card", "cardNumber", "card_number", "creditcard", "cvv", "pin", "userPin"),
    *("cpf", "CPF", "customer.cpf", "ssn", "iban", "otp", "credentials", "pan", "jwt"),
]
PLAIN_KEYS = [
    *("name", "id", "orderId", "shipping", "spinner", "discard", "postcard", "wildcard", "company", "span", "author"),
    *("opinion", "key", "routing_key", "cpfl", "", "123", "ü", "pass", "expansion"),
]


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_a_secret_is_known_by_its_key(key: str) -> None:
    assert redact({key: "hunter2"}) == {key: REDACTED}


@pytest.mark.parametrize("key", PLAIN_KEYS)
def test_a_key_that_only_looks_like_one_hides_nothing(key: str) -> None:
    assert redact({key: "hunter2"}) == {key: "hunter2"}


def test_it_is_hidden_at_any_depth_with_all_that_is_below_it() -> None:
    value = {"a": [{"b": {"password": "x", "card": {"number": 1, "holder": ["ann"]}}}, "plain"]}

    assert redact(value) == {"a": [{"b": {"password": REDACTED, "card": REDACTED}}, "plain"]}


def test_what_is_deeper_than_can_be_looked_at_is_hidden() -> None:
    value: Any = "deep"
    for _ in range(MOST_DEPTH * 3):
        value = [value]

    assert "deep" not in str(redact(value))
    assert REDACTED in str(redact(value))


def test_a_key_may_be_bytes() -> None:
    assert redact({b"password": "hunter2", b"\xff": 1}) == {b"password": REDACTED, b"\xff": 1}
    assert redact({b"name": b"token", b"value": "x"}) == {b"name": b"token", b"value": REDACTED}


def test_that_a_secret_is_missing_may_be_seen() -> None:
    assert redact({"token": None}) == {"token": None}


def test_a_name_and_a_value_are_a_key_and_its_value() -> None:
    headers = [{"name": "Authorization", "value": "x"}, {"key": "tenant", "value": "acme"}]

    assert redact(headers) == [{"name": "Authorization", "value": REDACTED}, {"key": "tenant", "value": "acme"}]


def test_the_original_is_not_changed() -> None:
    value = {"password": "x", "list": ["a"]}
    redact(value)

    assert value == {"password": "x", "list": ["a"]}


SECRET_TEXTS = {
    "a JSON web token": (f"sent {JWT} to", f"sent {REDACTED} to"),
    "a bearer token": ("Bearer abcdef0123456789==", f"Bearer {REDACTED}"),
    "a URL with a password": ("amqp://ann:hunter2@host:5672/", f"amqp://ann:{REDACTED}@host:5672/"),
    "a private key": ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", REDACTED),
    "a private key that is cut off": ("x -----BEGIN PRIVATE KEY-----\nabc", f"x {REDACTED}"),
    "a CPF": ("de 123.456.789-09 em", f"de {REDACTED} em"),
    "an AWS key": ("id AKIAIOSFODNN7EXAMPLE.", f"id {REDACTED}."),
    "a card with spaces": (f"card {CARD}!", f"card {REDACTED}!"),
    "a card with dashes": ("5500-0000-0000-0004", REDACTED),
    "a card and an amount": ("4111111111111111 43 EUR", f"{REDACTED} 43 EUR"),
    "a card and when it expires": (f"{CARD} 12/27", f"{REDACTED} 12/27"),
    "a card behind a number": ("order 5 4111111111111111", f"order 5 {REDACTED}"),
    "a card behind a date": ("2024-05-17 4111111111111111", f"2024-05-17 {REDACTED}"),
    "a card and a dash": ("4111111111111111-1", f"{REDACTED}-1"),
    "a card behind a fraction": ("0.5 4111111111111111", f"0.5 {REDACTED}"),
    "a form": ("user=ann&password=hunter2&x=1", f"user=ann&password={REDACTED}&x=1"),
    "a header line": ("Cookie: a=b; c=d\nHost: x", f"Cookie: {REDACTED}\nHost: x"),
    "JSON inside of text": ('{"password": "hun\\"ter2", "a": 1}', f'{{"password": {REDACTED}, "a": 1}}'),
    "JSON inside of JSON": ('{\\"password\\":\\"hunter2\\",\\"a\\":1}', f'{{\\"password\\":{REDACTED},\\"a\\":1}}'),
    "a quote inside of JSON inside of JSON": (
        r"{\"password\": \"hun\\\"ter2\", \"a\": 1}",
        rf"{{\"password\": {REDACTED}, \"a\": 1}}",
    ),
    "a backslash inside of JSON inside of JSON": (
        r"{\"password\": \"hunter2\\\\\", \"a\": 1}",
        rf"{{\"password\": {REDACTED}, \"a\": 1}}",
    ),
    "JSON inside of JSON inside of JSON": (
        r"{\\\"password\\\": \\\"hunter2\\\", \\\"a\\\": 1}",
        rf"{{\\\"password\\\": {REDACTED}, \\\"a\\\": 1}}",
    ),
    "a table below a key": ('{"card": {"n": [1, "}"]}, "a": 1}', f'{{"card": {REDACTED}, "a": 1}}'),
    "a number below a key": ('{"pin":1234,"a":1}', f'{{"pin":{REDACTED},"a":1}}'),
    "JSON that is cut off": ('{"token": "abc', f'{{"token": {REDACTED}'),
    "a table that is cut off": ('{"card": {"n": "411', f'{{"card": {REDACTED}'),
    "escaped text that is cut off": ('{\\"token\\":\\"abc', f'{{\\"token\\":{REDACTED}'),
    "a token below a key": (f"token={JWT}", f"token={REDACTED}"),
    "a key without a value": ("password=", "password="),
    "a repr": ("{'password': 'hunter2'}", f"{{'password': {REDACTED}}}"),
    "an option": ("mysql --password=hunter2 -u x", f"mysql --password={REDACTED} -u x"),
    "an option of one dash": ("java -Ddb.password=hunter2 x", f"java -Ddb.password={REDACTED} x"),
    "an option and its value": ("mysql --password hunter2 -u x", f"mysql --password {REDACTED} -u x"),
    "options of a list": (
        "Command '['mysql', '--password', 'hunter2', '--token=abc']' returned 1",
        f"Command '['mysql', '--password', {REDACTED}, '--token={REDACTED}]' returned 1",
    ),
    "an option without a value": ("mysql --password --verbose", "mysql --password --verbose"),
    "a term of a query that excludes": ("-body.password:hunter2", f"-body.password:{REDACTED}"),
    "a key behind a dot": ("..password=hunter2", f"..password={REDACTED}"),
    "a key that begins with a digit": ("2password=hunter2", f"2password={REDACTED}"),
    "a hash rocket": ("{:password=>'x'}", f"{{:password=>{REDACTED}}}"),
    "XML": ("<a><senha>x y</senha><b>z</b></a>", f"<a><senha>{REDACTED}</senha><b>z</b></a>"),
    "XML with CDATA": ("<a><senha> <![CDATA[x<y]]></senha><b>z</b></a>", f"<a><senha>{REDACTED}</senha><b>z</b></a>"),
    "CDATA that is cut off": ("<senha><![CDATA[x<y", f"<senha>{REDACTED}"),
    "XML inside of CDATA": ("<b><![CDATA[<senha>x</senha>]]></b>", f"<b><![CDATA[<senha>{REDACTED}</senha>]]></b>"),
    "XML with a namespace": ('<n:CPF id="1">123</n:CPF>', f'<n:CPF id="1">{REDACTED}</n:CPF>'),
}


@pytest.mark.parametrize(("text", "shown"), SECRET_TEXTS.values(), ids=SECRET_TEXTS.keys())
def test_a_secret_is_known_by_its_looks(text: str, shown: str) -> None:
    assert redact_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        *("order 4111111111111112 of today", "1715947200000", "2024-05-17T12:00:00", "a.b.c", "http://host:80/a@b"),
        *("3fa9c0ffee00-4bf92f3577b34da6a3ce929d0e0e4736", "no password here", "<password/>", "basic shop", "eyJ"),
        "c0ffee00-0000-4000-8000-000000000000",
    ],
)
def test_what_an_operator_searches_by_is_left(text: str) -> None:
    assert redact_text(text) == text


def test_a_card_may_be_a_number() -> None:
    assert redact([4111111111111111, 4111111111111112, 378282246310005, 1715947200000, True, 10**30]) == [
        REDACTED,
        4111111111111112,
        REDACTED,
        1715947200000,
        True,
        10**30,
    ]


def test_secrets_in_the_values_of_tables_are_hidden_by_their_looks_too() -> None:
    assert redact({"note": f"paid with {CARD}"}) == {"note": f"paid with {REDACTED}"}


def test_bytes_keep_their_length() -> None:
    data = b"\x00\xff" + JWT.encode() + b"\x01password=abc\x02"

    masked = mask(data)

    assert len(masked) == len(data)
    assert masked[:2] == b"\x00\xff"
    assert JWT.encode() not in masked
    assert b"abc" not in masked


def test_what_is_hidden_can_be_chosen() -> None:
    own = Redaction(keys=frozenset({"cnpj"}), patterns=(re.compile(r"ID-\d+"),), cards=False)

    assert redact({"cnpj": "x", "password": "y", "n": f"{CARD} ID-7"}, own) == {
        "cnpj": REDACTED,
        "password": "y",
        "n": f"{CARD} {REDACTED}",
    }


@pytest.mark.parametrize(
    "text",
    [
        *("eyJ-" * 20_000, "password" * 10_000, "a=" * 40_000, '"' * 80_000, "1 " * 40_000, "<a " * 30_000),
        *("-----BEGIN " * 8_000, "://" * 30_000, "token:{" * 12_000, "bearer " * 12_000, "\\" * 80_000),
        *('token:"' + '\\"' * 40_000, "x" * 80_000, "a.b-" * 20_000, "<pin>" * 16_000),
        *(
            "4 " * 40_000,
            "--token " * 12_000,
            "a." * 40_000,
            "22-" * 30_000,
            "<pin><![CDATA[" * 8_000,
            'pin:\\"' * 10_000,
        ),
    ],
    ids=lambda text: text[:8],
)
def test_no_text_keeps_it_busy(text: str) -> None:
    started = time.process_time()
    redact_text(text)

    assert time.process_time() - started < 5  # a fraction of a second, unless it is quadratic


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_no_value_makes_it_raise_and_twice_hides_no_more(value: Any) -> None:
    once = redact(value)

    assert redact(once) == once


@given(st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    redact_text(text)
    mask(text.encode("utf-8", "surrogatepass"))
