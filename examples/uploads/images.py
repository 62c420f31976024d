"""What is done with a picture, by Pillow: bytes in, results out."""

from io import BytesIO
from typing import Any

from PIL import Image, ImageStat, UnidentifiedImageError

KINDS = {"PNG": "png", "JPEG": "jpeg", "GIF": "gif", "WEBP": "webp"}
THUMBNAIL = (128, 128)


class NotAnImage(ValueError):
    """Nothing that we show."""


def validate(content: bytes) -> str:
    """Which kind of picture that is, by what is in it and not by what it is called.

    This reads the headers and checksums, not the pixels: it is quick, and a file that ends too early gets through.
    """
    try:
        with Image.open(BytesIO(content)) as image:
            kind = KINDS.get(image.format or "")
            image.verify()
    except (UnidentifiedImageError, SyntaxError, Image.DecompressionBombError, OSError) as error:
        raise NotAnImage(str(error).replace(repr(content), "the file") or type(error).__name__) from None
    if kind is None:
        raise NotAnImage(f"pictures of that kind are not shown; {', '.join(KINDS)} are")
    return kind


def thumbnail(content: bytes) -> bytes:
    with Image.open(BytesIO(content)) as image:
        image.thumbnail(THUMBNAIL)
        small = BytesIO()
        image.convert("RGB").save(small, "JPEG", quality=80)
        return small.getvalue()


def describe(content: bytes) -> dict[str, Any]:
    """Its measures, what the camera wrote into it, and its mean colour."""
    with Image.open(BytesIO(content)) as image:
        exif = {str(tag): str(value)[:200] for tag, value in image.getexif().items()}
        text = {key: value[:200] for key, value in image.info.items() if isinstance(value, str)}
        mean = ImageStat.Stat(image.convert("RGB")).mean
        colour = "#" + "".join(f"{round(part):02x}" for part in mean)
        return {"width": image.width, "height": image.height, "colour": colour, "exif": exif, "text": text}
