"""The pictures in the docs are what would be drawn today."""

from draw_systems import pictures


def test_the_pictures_of_the_example_systems_are_current() -> None:
    stale = [path.name for path, picture in pictures().items() if not path.exists() or path.read_text() != picture]
    assert stale == [], "run python tools/draw_systems.py"
