"""Pictures as the demo makes them, with Pillow for a witness."""

from io import BytesIO
from random import Random

import pytest
from PIL import Image

from redrive.demo import png


def test_a_picture_is_one_for_others_too() -> None:
    content = png.paint(96, 64, Random(1))

    with Image.open(BytesIO(content)) as image:
        image.load()
        assert (image.format, image.mode, image.size) == ("PNG", "RGB", (96, 64))
        assert image.tobytes() == png.read(content).pixels


def test_a_picture_that_is_not_made_of_whole_tiles() -> None:
    picture = png.read(png.paint(13, 9, Random(1)))

    assert (picture.width, picture.height, len(picture.pixels)) == (13, 9, 13 * 9 * 3)


def test_a_smaller_one_has_every_fourth_pixel() -> None:
    picture = png.read(png.paint(96, 64, Random(1)))

    small = png.read(png.write(png.shrink(picture, 4)))

    assert (small.width, small.height) == (24, 16)
    whole = Image.frombytes("RGB", (96, 64), picture.pixels)
    shrunk = Image.frombytes("RGB", (24, 16), small.pixels)
    assert all(shrunk.getpixel((x, y)) == whole.getpixel((4 * x, 4 * y)) for x in range(24) for y in range(16))


def test_every_wrong_byte_is_found() -> None:
    content = png.paint(16, 16, Random(1))

    for at in range(len(content)):
        with pytest.raises(png.Broken):
            png.check(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def test_a_missing_end_is_found() -> None:
    content = png.paint(16, 16, Random(1))

    for length in range(len(content)):
        with pytest.raises(png.Broken):
            png.check(content[:length])


def test_sixteen_bits_pass_the_check_and_cannot_be_read() -> None:
    content = png.paint(16, 16, Random(1), depth=16)

    assert png.check(content) == (16, 16)
    with pytest.raises(png.Unsupported, match="16 bits for a colour"):
        png.read(content)
