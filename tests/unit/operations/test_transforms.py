"""A transform changes one message, skips it, or fails for it; and whatever it does, nothing else happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest

from redrive.deadletters.dead_letter import DeadLetter, read_dead_letter
from redrive.deadletters.edits import Content, Edit
from redrive.errors import ConfigurationError, PatchError, TransformFailed
from redrive.operations.export_format import Exported
from redrive.operations.transforms import Transform, apply_transform, from_function, from_patch
from redrive.wire.properties import Properties, decode_properties

JSON = "application/json"


def message(body: bytes = b'{"id":42,"price":1.10}', content_type: str | None = JSON) -> Exported:
    return Exported("dlx", "q", Properties(content_type=content_type, headers={"tenant": "acme"}).encode(), body)


def run(transform: Transform, given: Exported | None = None, **other: Any) -> Content | None:
    given = given or message()
    letter = read_dead_letter(given.raw_properties, given.body, queue="q.dlq", position=0)
    return apply_transform(transform, given, letter, **other)


def returning(value: object) -> Transform:
    return from_function(lambda _, __, ___: value, "fixes:fix")


# JSON Patch ------------------------------------------------------------------------------------------------


def test_a_patch_changes_the_body_and_nothing_else() -> None:
    transform = from_patch('[{"op":"replace","path":"/id","value":43}]')

    assert run(transform) == Content(message().raw_properties, b'{"id":43,"price":1.10}')
    assert str(transform) == "JSON Patch: replace /id"


def test_a_patch_that_does_not_fit_is_a_failure_of_that_message() -> None:
    transform = from_patch('[{"op":"test","path":"/id","value":1}]')

    with pytest.raises(TransformFailed, match=r"the test failed.* \(operation 0, path '/id'\)"):
        run(transform)
    assert run(transform, message(b'{"id":1}')) is not None


def test_a_body_that_is_no_json_is_a_failure_of_that_message() -> None:
    with pytest.raises(TransformFailed, match="the body is no JSON"):
        run(from_patch("[]"), message(b"\xff"))


def test_a_patch_that_is_none_is_refused_before_anything_is_done() -> None:
    with pytest.raises(PatchError, match="a patch is an array"):
        from_patch("{}")


# Functions -------------------------------------------------------------------------------------------------


def test_a_function_sees_the_message() -> None:
    seen: list[object] = []

    def look(body: bytes, headers: Mapping[str, object], letter: DeadLetter) -> None:
        seen.extend((body, dict(headers), letter.queue))

    assert run(from_function(look)) is None
    assert seen == [b'{"id":42,"price":1.10}', {"tenant": "acme"}, "q.dlq"]


@pytest.mark.parametrize(
    ("value", "body"),
    [
        (b"[1]", b"[1]"),
        (bytearray(b"[1]"), b"[1]"),
        ({"a": Decimal("1.10"), "b": [True, None]}, b'{"a":1.10,"b":[true,null]}'),
        ([1, "ü"], '[1,"ü"]'.encode()),
        ({}, b"{}"),
        (Edit(b"[2]"), b"[2]"),
    ],
)
def test_what_a_function_returns_is_the_new_body(value: object, body: bytes) -> None:
    assert run(returning(value)) == Content(message().raw_properties, body)


def test_an_edit_changes_headers_and_properties_too() -> None:
    found = run(returning(Edit(set_headers={"tenant": "umbrella"}, properties={"type": "new"})))

    assert found is not None
    assert found.body == message().body
    assert decode_properties(found.raw_properties) == Properties(
        content_type=JSON, headers={"tenant": "umbrella"}, type="new"
    )


def test_none_skips() -> None:
    assert run(returning(None)) is None


@pytest.mark.parametrize("value", ["text", True, 1, 1.5, object(), {1}])
def test_anything_else_is_a_failure_that_says_what_is_wanted(value: object) -> None:
    with pytest.raises(TransformFailed, match=r"fixes:fix returned \w+ \(.*\): want bytes"):
        run(returning(value))


@pytest.mark.parametrize("value", [{"a": float("nan")}, {1: 2}, [b"x"], [object()]])
def test_what_json_cannot_carry_is_a_failure(value: object) -> None:
    with pytest.raises(TransformFailed, match="fixes:fix returned what is no JSON"):
        run(returning(value))


def test_json_is_not_sent_under_another_name() -> None:
    packed = message(b"\x80", "application/x-msgpack")

    with pytest.raises(TransformFailed, match="the message is called 'application/x-msgpack': return bytes"):
        run(returning({}), packed)
    assert run(returning(b"\x81"), packed) is not None
    assert run(returning({}), message(b"", None)) is not None


def test_a_body_that_is_not_what_it_is_called_is_a_failure_unless_forced() -> None:
    with pytest.raises(TransformFailed, match="the body is called application/json, and it is not"):
        run(returning(b"nonsense"))
    assert run(returning(b"nonsense"), force=True) == Content(message().raw_properties, b"nonsense")


def test_what_amqp_cannot_carry_is_a_failure() -> None:
    with pytest.raises(TransformFailed, match="header n: "):
        run(returning(Edit(set_headers={"n": 1 << 70})))


def raising(error: BaseException) -> Callable[..., None]:
    def fix(*_: object) -> None:
        raise error

    return fix


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ValueError("no price"), "fixes:fix raised ValueError: no price"),
        (KeyError("price"), "fixes:fix raised KeyError: 'price'"),
        (SystemExit(1), "fixes:fix raised SystemExit: 1"),
        (ValueError("\x1b[2J"), "fixes:fix raised ValueError: "),
    ],
)
def test_what_a_function_raises_is_a_failure_of_that_message(error: BaseException, problem: str) -> None:
    with pytest.raises(TransformFailed, match=problem) as caught:
        run(from_function(raising(error), "fixes:fix"))

    assert str(caught.value).isprintable()


def test_somebody_at_the_keyboard_is_obeyed() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(from_function(raising(KeyboardInterrupt())))


def test_headers_cannot_be_changed_in_place() -> None:
    def fix(_: bytes, headers: dict[str, object], __: object) -> None:
        headers["tenant"] = "other"

    with pytest.raises(TransformFailed, match="raised TypeError"):
        run(from_function(fix))


def test_an_edit_that_makes_no_sense_is_a_failure() -> None:
    with pytest.raises(TransformFailed, match="did you mean content_type"):
        run(from_function(lambda *_: Edit(properties={"contenttype": "a"})))


def test_a_coroutine_is_a_failure_and_leaves_no_warning() -> None:
    async def fix() -> None: ...

    with pytest.raises(TransformFailed, match="returned coroutine"):
        run(from_function(lambda *_: fix()))


async def _asynchronous(*_: object) -> None: ...


class _Asynchronous:
    async def __call__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("text", "str is str: want a function of body, headers and letter"),
        (_asynchronous, "_asynchronous is asynchronous: want an ordinary function"),
        (_Asynchronous(), "is asynchronous"),
        (lambda body: body, "must take body, headers and letter: too many positional arguments"),
        (lambda a, b, c, d: (a, b, c, d), "must take body, headers and letter: missing a required argument: 'd'"),
    ],
)
def test_what_cannot_be_one_is_refused_before_anything_is_done(function: object, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        from_function(function)


def test_a_function_without_a_signature_is_given_a_try() -> None:
    assert str(from_function(max, "max")) == "max"


def test_a_function_is_known_by_its_name() -> None:
    assert str(from_function(_ordinary)) == "_ordinary"


def _ordinary(*_: object) -> None: ...
