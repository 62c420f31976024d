"""Pictures as the demo makes them: some are incomplete, some cannot be shrunk, and all the others can."""

from pathlib import Path
from random import Random

import pytest
from PIL import Image

from redrive.demo import pipeline
from redrive.demo.pipeline import HEIGHT, SMALLER, WIDTH, File, Incomplete, Unsupported, make_thumbnail, read, upload

NAME = "0197a5f2-6c70-7d3c-9d3e-3f1c2b4a5d6e"


@pytest.fixture(autouse=True)
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, File]]:
    """What is published, instead of a broker."""
    told: list[tuple[str, File]] = []

    async def tell(key: str, file: File) -> None:
        told.append((key, file))

    monkeypatch.setattr(pipeline.app, "data", tmp_path)
    monkeypatch.setattr(pipeline, "_tell", tell)
    return told


def keep(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / f"{NAME}.ppm").write_bytes(content)


async def test_pictures_are_pictures_for_other_programs_too(tmp_path: Path, told: list[tuple[str, File]]) -> None:
    for seed in range(1, 5):
        await upload(Random(seed))

    for _, file in told:
        with Image.open(tmp_path / "pictures" / f"{file.file}.ppm") as image:
            assert (image.format, image.size) == ("PPM", (WIDTH, HEIGHT))
            assert read(file.file)[3] == image.tobytes()


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"P6\n2 1", b"P6\n2 1\n255\n12345", b"P6\n2 1\n255\n1234567"])
def test_a_picture_that_is_not_complete_is_found(tmp_path: Path, content: bytes) -> None:
    keep(tmp_path, content)

    with pytest.raises(Incomplete):
        read(NAME)


async def test_a_thumbnail_has_every_fourth_pixel(tmp_path: Path) -> None:
    pixels = Random(1).randbytes(WIDTH * HEIGHT * 3)
    keep(tmp_path, b"P6\n%d %d\n255\n" % (WIDTH, HEIGHT) + pixels)

    await make_thumbnail(File(NAME))

    whole = Image.frombytes("RGB", (WIDTH, HEIGHT), pixels)
    with Image.open(tmp_path / "thumbnails" / f"{NAME}.ppm") as small:
        assert small.size == (WIDTH // SMALLER, HEIGHT // SMALLER)
        assert all(
            small.getpixel((x, y)) == whole.getpixel((SMALLER * x, SMALLER * y))
            for x in range(small.width)
            for y in range(small.height)
        )


async def test_sixteen_bits_for_a_colour_are_complete_and_cannot_be_shrunk(tmp_path: Path) -> None:
    keep(tmp_path, b"P6\n1 1\n65535\n123456")

    assert read(NAME)[:3] == (1, 1, 16)
    with pytest.raises(Unsupported, match="16 bits for a colour"):
        await make_thumbnail(File(NAME))
