"""Whether a command said what the page shows.

Every word counts, but not how many blanks are between them. What differs from run to run (ids, times, ages, ports) has
to be of the same kind and may be another. `…` stands for anything in a line, and a line of its own `…` for any lines.

What a page shows as an id stands for the id that was really there: `Stand.put` remembers the two, so that a later
command on the page, which names the id that is shown (or its beginning), can be given the real one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# The order matters: the longer kinds first.
_KINDS = {
    "invoice": r"\d{44}",
    "charge": r"\bch_[0-9a-f]{8}\b",
    "beginning": r"\b[0-9a-f]{8}-(?=…)",
    "operation": r"\bop_[0-9a-z]{8,26}",
    "uuid": r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    "letter": r"\b[0-9a-z-]{4,12}-[0-9a-f]{16}\b",
    "moment": r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?",
    "time": r"\b\d\d:\d\d:\d\d\b",
    "age": r"\b(?:\d+[dhms])+ ago\b",
    "hex": r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,64}\b",
    "number": r"\b\d{1,3}(?:,\d{3})+\b",
    "address": r"(?:127\.0\.0\.1|localhost):\d+",
}
_SAID = _KINDS | {"beginning": r"[0-9a-f]{8}-"}  # where less is shown than is said
_IDS = ("invoice", "charge", "operation", "uuid", "letter", "hex", "address")
_VARIES = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>()][A-Z0-9]?")
_SHORTEST_BEGINNING = 4


@dataclass
class Stand:
    """What stands for what: ids and addresses as the page shows them, and as they are."""

    real: dict[str, str] = field(default_factory=dict)

    def put(self, shown: str, real: str) -> None:
        self.real[shown] = real

    def translate(self, command: str) -> str:
        """The command with what is really there. The beginning of an id becomes the whole of it."""
        for shown in sorted(self.real, key=len, reverse=True):
            command = command.replace(shown, self.real[shown])
        return re.sub(r"(?<![\w./:-])[0-9a-z_-]{4,}(?![\w./:-])", self._whole, command)

    def addresses(self, text: str) -> str:
        """The text with the addresses that are really there, and nothing else changed."""
        for shown, real in self.real.items():
            if shown.startswith("127.0.0.1:"):
                text = text.replace(shown, real)
        return text

    def _whole(self, word: re.Match[str]) -> str:
        if word[0] in self.real.values():
            return word[0]
        for shown, real in self.real.items():
            if shown.startswith(word[0]) and len(word[0]) >= _SHORTEST_BEGINNING:
                return real
        return word[0]


def plain(text: str) -> str:
    """As it looks on a screen, without colours; what was overwritten in a line is not there."""
    text = _ESCAPE.sub("", text).replace("\r\n", "\n")
    return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in text.split("\n"))


def matches(shown: str, said: str, stand: Stand, *, wholly: bool = True) -> bool:
    """`wholly`: nothing else was said. If so, the stand knows afterwards what stands for what."""
    pattern, names = _pattern(shown.strip("\n"))
    compiled = re.compile(pattern, re.DOTALL)
    said = plain(said).strip("\n")
    found = compiled.fullmatch(said) if wholly else compiled.search(said)
    if found is None:
        return False
    for number, text in enumerate(names):
        if text is not None:
            stand.put(text, found[f"v{number}"])
    return True


def says(shown: str, said: str, stand: Stand) -> bool:
    """Whether each of the lines that are shown was said, in whatever order, and among whatever else."""
    lines = [line for line in shown.split("\n") if line.strip() not in ("", "…")]
    return all(matches(line, said, stand, wholly=False) for line in lines)


def _pattern(shown: str) -> tuple[str, list[str | None]]:
    """The expression, and for each of its groups v0, v1, … the text that is shown there, where that is an id."""
    names: list[str | None] = []
    parts: list[str] = []
    lines = [line.rstrip() for line in shown.split("\n")]
    for number, line in enumerate(lines):
        last = number == len(lines) - 1
        if line.strip() == "…":
            parts.append(r".*?" if last else r"(?:[^\n]*\n)*?")
            continue
        parts.append(_line(line, names) + r"[ \t]*" + ("" if last else r"\n"))
    return "".join(parts), names


def _line(line: str, names: list[str | None]) -> str:
    pattern, position = "", 0
    for varying in _VARIES.finditer(line):
        pattern += _literal(line[position : varying.start()])
        kind = str(varying.lastgroup)
        pattern += f"(?P<v{len(names)}>{_SAID[kind]})"
        names.append(varying[0] if kind in _IDS else None)
        position = varying.end()
    return pattern + _literal(line[position:])


def _literal(text: str) -> str:
    pieces = [re.escape(piece) for piece in re.split(r"[ \t]+", text)]
    return r"[ \t]+".join(pieces).replace("…", r"[^\n]*?")
