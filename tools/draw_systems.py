"""Draw the example systems into docs/pictures, as `redrive topology draw` does. A test tells when they are stale."""

from pathlib import Path

from redrive.topology import Server, expand
from redrive.topology.draw import draw
from redrive.topology.serialization import parse_toml

ROOT = Path(__file__).resolve().parents[1]
SERVER = Server.of("4.3")


def pictures() -> dict[Path, str]:
    """What each file should hold."""
    drawn = {}
    for file in sorted((ROOT / "examples").glob("*/topology.toml")):
        definitions = expand(parse_toml(file.read_text()), SERVER)
        drawn[ROOT / "docs" / "pictures" / f"{file.parent.name}.svg"] = draw(definitions, "svg")
    return drawn


if __name__ == "__main__":
    for path, picture in pictures().items():
        path.write_text(picture)
        print(path.relative_to(ROOT))
