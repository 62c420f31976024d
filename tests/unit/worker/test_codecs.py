from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest

from redrive.errors import ConfigurationError
from redrive.wire.properties import Properties
from redrive.worker.codecs import Codecs, Malformed, raw_content_type


class Struct(msgspec.Struct):
    id: int
    name: str = "?"


@dataclass
class Data:
    id: int


class Dict(TypedDict):
    id: int


class Model:
    """As pydantic's models read and write themselves."""

    def __init__(self, id: int) -> None:
        self.id = id

    @classmethod
    def model_validate_json(cls, body: bytes) -> "Model":
        return cls(**msgspec.json.decode(body))

    def model_dump_json(self) -> str:
        return f'{{"id": {self.id}}}'


def raw(content_type: str | None = None) -> bytes:
    return Properties(content_type=content_type, headers={"a": 1}).encode()


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (Struct, Struct(7)),
        (Data, Data(7)),
        (Dict, {"id": 7}),
        (dict, {"id": 7}),
        (dict[str, int], {"id": 7}),
        (Any, {"id": 7}),
        (bytes, b'{"id": 7}'),
        (str, '{"id": 7}'),
    ],
)
def test_a_body_is_read_as_what_the_handler_asks_for(wanted: Any, value: Any) -> None:
    assert Codecs().reader(wanted).read(b'{"id": 7}', raw()) == value


def test_a_model_reads_itself() -> None:
    assert Codecs().reader(Model).read(b'{"id": 7}', raw("application/json")).id == 7


@pytest.mark.parametrize("content_type", [None, "application/json", "Application/JSON; charset=utf-8", "text/json",
                                          "application/cloudevents+json", "application/octet-stream"])  # fmt: skip
def test_json_is_known_by_many_names(content_type: str | None) -> None:
    reader = Codecs().reader(Struct)
    assert reader.read(b'{"id": 7}', raw(content_type)) == Struct(7)
    assert reader.read(b'{"id": 8}', raw(content_type)) == Struct(8)  # by what it has learnt


def test_msgpack_and_text_are_known_too() -> None:
    assert Codecs().reader(Struct).read(msgspec.msgpack.encode({"id": 7}), raw("application/msgpack")) == Struct(7)
    assert Codecs().reader(str).read("grüß".encode(), raw("text/plain")) == "grüß"
    assert Codecs().reader(int).read(b"42", raw("text/plain")) == 42


@pytest.mark.parametrize(
    ("wanted", "body", "content_type"),
    [
        (Struct, b"{", None),
        (Struct, b'{"id": "seven"}', None),
        (Struct, b"\xff\xfe", None),
        (Struct, b"", None),
        (Model, b'{"nope": 1}', None),
        (str, b"\xff", "text/plain"),
        (Struct, b"<id>7</id>", "application/xml"),
        (dict, b"[" * 100_000, None),
    ],
)
def test_what_cannot_be_read_is_malformed(wanted: Any, body: bytes, content_type: str | None) -> None:
    with pytest.raises(Malformed):
        Codecs().reader(wanted).read(body, raw(content_type))


def test_a_type_that_no_body_can_be_is_the_programmers_mistake() -> None:
    with pytest.raises(ConfigurationError, match="no type that a body can be read as"):
        Codecs().reader(Struct | Dict)


def test_another_content_type_can_be_taught() -> None:
    class Shouting:
        def decoder(self, wanted: Any) -> Any:  # noqa: ARG002
            return lambda body: body.decode().lower()

        def encode(self, value: Any) -> bytes:
            return str(value).upper().encode()

    codecs = Codecs({"text/shouting": Shouting()})
    assert codecs.reader(Any).read(b"HELLO", raw("text/shouting")) == "hello"
    assert codecs.encode("hello", "text/shouting") == (b"HELLO", "text/shouting")


@pytest.mark.parametrize("error", [TypeError("not that"), RuntimeError("no schema registry")])
def test_a_codec_that_has_no_decoder_for_a_type_makes_the_message_malformed(error: Exception) -> None:
    class Picky:
        def decoder(self, wanted: Any) -> Any:  # noqa: ARG002
            raise error

        def encode(self, value: Any) -> bytes:
            return bytes(value)

    reader = Codecs({"application/x-picky": Picky()}).reader(Struct)
    with pytest.raises(Malformed, match=str(error)):
        reader.read(b"", raw("application/x-picky"))


@pytest.mark.parametrize(
    ("value", "written", "content_type"),
    [
        (Struct(7, "x"), b'{"id":7,"name":"x"}', "application/json"),
        ({"id": 7}, b'{"id":7}', "application/json"),
        (b"raw", b"raw", "application/octet-stream"),
        ("text", b"text", "text/plain"),
        (Model(7), b'{"id": 7}', "application/json"),
    ],
)
def test_a_value_is_written_as_what_it_is(value: Any, written: bytes, content_type: str) -> None:
    assert Codecs().encode(value, None) == (written, content_type)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="object cannot be written as application/json"):
        Codecs().encode(object(), None)
    with pytest.raises(ConfigurationError, match="nothing is known that writes application/xml"):
        Codecs().encode({}, "application/xml")


@pytest.mark.parametrize("junk", [b"", b"\x80", b"\x80\x00", b"\x80\x00\xffabc", b"\x00\x00\x05abc"])
def test_the_content_type_of_nonsense_does_not_raise(junk: bytes) -> None:
    assert isinstance(raw_content_type(junk), bytes)


def test_strangers_cannot_fill_the_memory_with_content_types() -> None:
    reader = Codecs().reader(Struct)
    for number in range(1000):
        with pytest.raises(Malformed):
            reader.read(b"{}", raw(f"x/{number}"))
    assert len(reader._decoders) <= 64
