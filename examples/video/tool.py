"""What makes a video smaller: ffmpeg, or without it a few lines of Python, which are slow and say so."""

from __future__ import annotations

import logging
import shutil
import subprocess
from pathlib import Path

from examples.video import clips, settings
from examples.video.clips import NotAVideo

log = logging.getLogger(__name__)


class ToolFailed(Exception):
    """ffmpeg did not come to an end of its own: it took too long, or somebody ended it."""


def transcode(source: Path, target: Path) -> str:
    """To half the size, as MP4. Says by what."""
    if _ffmpeg(source, target, "-vf", "scale=-2:ih/2", "-movflags", "+faststart", "-f", "mp4"):
        return "ffmpeg"
    target.write_bytes(clips.written([frame.halved() for frame in clips.read(source.read_bytes())]))
    return "Python, since there is no ffmpeg"


def thumbnail(source: Path, target: Path) -> str:
    """The first picture, as JPEG; without ffmpeg in shades of grey, as PGM."""
    if _ffmpeg(source, target, "-frames:v", "1", "-f", "mjpeg"):
        return "ffmpeg"
    frame = clips.read(source.read_bytes())[0].halved()
    target.write_bytes(f"P5 {frame.width} {frame.height} 255\n".encode() + frame.planes[0])
    return "Python, since there is no ffmpeg"


def _ffmpeg(source: Path, target: Path, *options: str) -> bool:
    """Was there one to do it?"""
    found = shutil.which("ffmpeg")
    if found is None:
        log.warning("there is no ffmpeg here: Python does what it can")
        return False
    command = [found, "-nostdin", "-v", "error", "-y", "-i", str(source), *options, str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=settings.TOOL_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise ToolFailed(f"ffmpeg took longer than {settings.TOOL_TIMEOUT} s") from None
    if done.returncode < 0:
        raise ToolFailed(f"ffmpeg was ended by signal {-done.returncode}")
    if done.returncode > 0:
        said = done.stderr.strip().splitlines() or ["ffmpeg does not say why"]
        raise NotAVideo(said[-1].replace(str(source), "the file"))
    return True
