"""Inputs from inputs. A mutation that keeps the rest of a frame intact goes deeper than a random byte.

`Mutator.stream` knows frames: it drops, repeats, swaps and borrows them, lies in their heads, and changes their
payloads with the length put right. `Mutator.payload` knows what stands in payloads: lengths, flags, tables.
`Mutator.text` knows words, and `Mutator.value` what JSON is made of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

from redrive.wire.frames import END, HEAD, OVERHEAD, PROTOCOL_HEADER
from redrive.wire.method import METHODS
from tests.support.connection_pair import frame, frame_by_frame

# Where programs break: ends of ranges, signs, end octets, method ids, types of field.
_TELLING_BYTES = (0, 1, 2, 3, 4, 8, 0x10, 0x3C, 0x7F, 0x80, 0xCE, 0xFE, 0xFF, *b"tbBsuIilLfdDSxAFTV")
_TELLING_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 14, 20, 127, 128, 255, 256, 4088, 4089, 4096, 65535, 0x7FFFFFFF, 0xFFFFFFFF)
_METHOD_IDS = tuple(METHODS)
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_LARGEST = 20_000  # an input beyond this is cut: it would only take longer


class Mutator:
    def __init__(self, chance: Random) -> None:
        self.chance = self._chance = chance
        self._frame_edits: tuple[Callable[[list[bytes], int, Sequence[bytes]], None], ...] = (
            self._drop, self._repeat, self._swap, self._borrow, self._head, self._end, self._inside, self._inside,
            self._inside, self._join,
        )  # fmt: skip
        self._edits: tuple[Callable[[bytearray, int, Sequence[bytes]], None], ...] = (
            self._bit, self._byte, self._number, self._delete, self._copy, self._insert, self._graft, self._table,
        )  # fmt: skip

    def stream(self, data: bytes, others: Sequence[bytes]) -> bytes:
        """What a peer might say instead of this."""
        units = list(frame_by_frame(data)) or [b""]
        for _ in range(self._how_many()):
            edit = self._chance.choice(self._frame_edits)
            edit(units, self._chance.randrange(len(units)), others)
            units = units or [b""]
        mutated = b"".join(units)
        if self._chance.random() < 0.15:
            mutated = self.payload(mutated, others)
        return mutated[:_LARGEST]

    def payload(self, data: bytes, others: Sequence[bytes]) -> bytes:
        mutated = bytearray(data)
        for _ in range(self._how_many()):
            edit = self._chance.choice(self._edits)
            edit(mutated, self._chance.randrange(len(mutated) + 1), others)
        return bytes(mutated[:_LARGEST])

    def text(self, data: bytes, others: Sequence[bytes], words: Sequence[str]) -> bytes:
        """What somebody might write instead of this, with some of these words."""
        if self._chance.random() < 0.2:
            return self.payload(data, others)
        tokens = _TOKEN.findall(data.decode("utf-8", "surrogateescape")) or [""]
        for _ in range(self._how_many()):
            at = self._chance.randrange(len(tokens) + 1)
            word = self._chance.choice(words)
            match self._chance.randrange(6):
                case 0:
                    tokens[at:at] = [word]
                case 1 | 2:
                    tokens[at : at + 1] = [word]
                case 3:
                    del tokens[at : at + self._chance.choice((1, 2, 8))]
                case 4:
                    start = self._chance.randrange(len(tokens) + 1)
                    tokens[at:at] = tokens[start : start + self._chance.choice((1, 3, 20))]
                case _:
                    other = _TOKEN.findall(self._chance.choice(others).decode("utf-8", "surrogateescape"))
                    start = self._chance.randrange(len(other) + 1)
                    tokens[at:at] = other[start : start + self._chance.choice((1, 3, 20))]
        return "".join(tokens).encode("utf-8", "surrogatepass" if self._chance.random() < 0.1 else "replace")

    def value(self, value: Any, hostile: Sequence[Any]) -> Any:
        """What a document might hold instead of this: a few of its places with something hostile in them."""
        value = deepcopy(value)
        for _ in range(self._how_many()):
            value = self._somewhere(value, hostile)
        return value

    def _somewhere(self, value: Any, hostile: Sequence[Any]) -> Any:
        """Walk down to some place, and change it there."""
        chance = self._chance
        if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
            return deepcopy(chance.choice(hostile))
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        place = chance.choice(places)
        edit = chance.random()
        if edit < 0.08:
            del value[place]
        elif edit < 0.16 and isinstance(value, list):
            value.append(deepcopy(value[place]))
        elif edit < 0.16:
            value[str(chance.choice(hostile))[:300]] = value[place]
        elif edit < 0.2 and isinstance(value, dict):
            value[place], value[places[0]] = value[places[0]], value[place]
        else:
            value[place] = self._somewhere(value[place], hostile)
        return value

    def _how_many(self) -> int:
        return self._chance.choice((1, 1, 1, 2, 2, 3, 5))

    # Frames -----------------------------------------------------------------------------------------------

    def _drop(self, units: list[bytes], at: int, _: Sequence[bytes]) -> None:
        del units[at]

    def _repeat(self, units: list[bytes], at: int, _: Sequence[bytes]) -> None:
        units.insert(self._chance.randrange(len(units) + 1), units[at])

    def _swap(self, units: list[bytes], at: int, _: Sequence[bytes]) -> None:
        other = self._chance.randrange(len(units))
        units[at], units[other] = units[other], units[at]

    def _borrow(self, units: list[bytes], at: int, others: Sequence[bytes]) -> None:
        borrowed = list(frame_by_frame(self._chance.choice(others)))
        start = self._chance.randrange(len(borrowed) + 1)
        units[at:at] = borrowed[start : start + self._chance.randint(1, 4)]

    def _head(self, units: list[bytes], at: int, _: Sequence[bytes]) -> None:
        """Another type, another channel, or a length that lies."""
        unit = units[at]
        if len(unit) < OVERHEAD:
            return
        kind, channel, size = HEAD.unpack_from(unit)
        match self._chance.randrange(4):
            case 0:
                kind = self._chance.choice((1, 2, 3, 8, 4, 0, 255))
            case 1 | 2:
                channel = self._chance.choice((0, 1, 2, 3, 4, 5, 65535))
            case _:
                size = self._chance.choice((size ^ 1, size // 2, *_TELLING_NUMBERS))
        units[at] = HEAD.pack(kind, channel, size) + unit[7:]

    def _end(self, units: list[bytes], at: int, _: Sequence[bytes]) -> None:
        units[at] = units[at][:-1] + bytes((self._chance.choice(_TELLING_BYTES),))

    def _inside(self, units: list[bytes], at: int, others: Sequence[bytes]) -> None:
        """Another payload in a frame that is right about its length."""
        unit = units[at]
        if len(unit) < OVERHEAD or unit == PROTOCOL_HEADER:
            units[at] = self.payload(unit, others)
            return
        kind, channel, _ = HEAD.unpack_from(unit)
        payload = unit[7:-1]
        if kind == 1 and self._chance.random() < 0.1:
            payload = self._chance.choice(_METHOD_IDS) + payload[4:]
        units[at] = frame(kind, channel, payload[:4] + self.payload(payload[4:], others))

    def _join(self, units: list[bytes], at: int, _: Sequence[bytes]) -> None:
        """A frame within a frame."""
        units[at] = frame(self._chance.choice((1, 2, 3)), self._chance.randint(0, 3), units[at], end=END)

    # Bytes ------------------------------------------------------------------------------------------------

    def _bit(self, data: bytearray, at: int, _: Sequence[bytes]) -> None:
        if at < len(data):
            data[at] ^= 1 << self._chance.randrange(8)

    def _byte(self, data: bytearray, at: int, _: Sequence[bytes]) -> None:
        data[at : at + 1] = bytes((self._chance.choice(_TELLING_BYTES),))

    def _number(self, data: bytearray, at: int, _: Sequence[bytes]) -> None:
        number, width = self._chance.choice(_TELLING_NUMBERS), self._chance.choice((2, 4, 8))
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "big")

    def _delete(self, data: bytearray, at: int, _: Sequence[bytes]) -> None:
        del data[at : at + self._chance.choice((1, 2, 4, 8, 30))]

    def _copy(self, data: bytearray, at: int, _: Sequence[bytes]) -> None:
        start = self._chance.randrange(len(data) + 1)
        data[at:at] = data[start : start + self._chance.choice((1, 4, 16, 100))]

    def _insert(self, data: bytearray, at: int, _: Sequence[bytes]) -> None:
        data[at:at] = self._chance.randbytes(self._chance.choice((1, 2, 4, 9)))

    def _graft(self, data: bytearray, at: int, others: Sequence[bytes]) -> None:
        other = self._chance.choice(others)
        start = self._chance.randrange(len(other) + 1)
        data[at:at] = other[start : start + self._chance.choice((4, 10, 40))]

    def _table(self, data: bytearray, at: int, _: Sequence[bytes]) -> None:
        """A field table where one may be expected, some of them very deep or wide."""
        table = self._field_table(self._chance.choice((0, 0, 0, 1, 1, 2, 3, 30, 33, 200)))
        data[at : at + self._chance.choice((0, 4, len(table)))] = table

    def _field_table(self, deep: int) -> bytes:
        field = self._field()
        for _ in range(deep):
            content = field if self._chance.random() < 0.3 else b"\x01k" + field
            kind = b"A" if content is field else b"F"
            field = kind + len(content).to_bytes(4, "big") + content
        entries = (field, *(self._field() for _ in range(self._chance.randint(0, 3))))
        content = b"".join(b"\x01" + self._chance.randbytes(1) + entry for entry in entries)
        return len(content).to_bytes(4, "big") + content

    def _field(self) -> bytes:
        kind = self._chance.choice(b"tbBsuIilLfdDSxAFTV")
        size = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "f": 4, "D": 5, "V": 0}.get(chr(kind), 8)
        if chr(kind) in "SxAF":
            length = self._chance.choice((0, 0, 1, 5))
            return bytes((kind,)) + length.to_bytes(4, "big") + self._chance.randbytes(length)
        return bytes((kind,)) + self._chance.randbytes(size)
