"""The colours of pictures, on light and on dark paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redrive.topology.draw.picture import NodeKind, Tone


@dataclass(frozen=True, slots=True)
class Palette:
    paper: str
    ink: str
    muted: str
    group: str
    group_border: str
    tones: Mapping[Tone, str]
    fills: Mapping[NodeKind, str]
    borders: Mapping[NodeKind, str]


LIGHT = Palette(
    paper="#ffffff",
    ink="#1f2328",
    muted="#59636e",
    group="#f6f8fa",
    group_border="#d5dbe1",
    tones={Tone.FLOW: "#6b7683", Tone.RETRY: "#9a6200", Tone.DEAD: "#b3261e"},
    fills={
        NodeKind.EXCHANGE: "#eaf1fd",
        NodeKind.DELAYS: "#f2ecfb",
        NodeKind.MAIN: "#ffffff",
        NodeKind.PLAIN: "#ffffff",
        NodeKind.WAITING: "#fff5dc",
        NodeKind.DEAD: "#fdecea",
        NodeKind.MISSING: "#ffffff",
    },
    borders={
        NodeKind.EXCHANGE: "#3b6fd1",
        NodeKind.DELAYS: "#7a55c7",
        NodeKind.MAIN: "#2f855a",
        NodeKind.PLAIN: "#6b7683",
        NodeKind.WAITING: "#c08a1e",
        NodeKind.DEAD: "#c9413a",
        NodeKind.MISSING: "#c9413a",
    },
)

DARK = Palette(
    paper="#0d1117",
    ink="#e6edf3",
    muted="#9aa4af",
    group="#151b23",
    group_border="#303843",
    tones={Tone.FLOW: "#8b96a3", Tone.RETRY: "#e0a93b", Tone.DEAD: "#ff7b72"},
    fills={
        NodeKind.EXCHANGE: "#13233d",
        NodeKind.DELAYS: "#251c3a",
        NodeKind.MAIN: "#0f1a17",
        NodeKind.PLAIN: "#0d1117",
        NodeKind.WAITING: "#2b2210",
        NodeKind.DEAD: "#33181a",
        NodeKind.MISSING: "#0d1117",
    },
    borders={
        NodeKind.EXCHANGE: "#5b8def",
        NodeKind.DELAYS: "#a582ee",
        NodeKind.MAIN: "#4cb782",
        NodeKind.PLAIN: "#8b96a3",
        NodeKind.WAITING: "#d29922",
        NodeKind.DEAD: "#f0645c",
        NodeKind.MISSING: "#f0645c",
    },
)
