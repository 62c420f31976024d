"""The map in ARCHITECTURE.md names every package and every folder, and nothing else."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IGNORED = {"__init__.py", "__main__.py", "__pycache__", "py.typed"}


def entries(folder: str) -> set[str]:
    """Return the names that the map lists below a folder."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    block = re.search(r"## The map\n\n```\n(.*?)```", text, re.DOTALL)
    assert block is not None
    found = re.search(rf"^{folder}.*\n((?: .*\n)+)", block[1], re.MULTILINE)
    assert found is not None, f"the map has no {folder}"
    return {line.split()[0] for line in found[1].splitlines() if re.match(r"  \S", line)}


def tree(folder: str) -> set[str]:
    paths = [path for path in (ROOT / folder).iterdir() if path.name not in IGNORED]
    return {f"{path.name}/" for path in paths if path.is_dir()} | {p.name for p in paths if p.suffix == ".py"}


def test_the_map_lists_the_packages_and_modules_of_the_product() -> None:
    assert entries("src/redrive/") == tree("src/redrive")


def test_the_map_lists_the_folders_of_the_tests() -> None:
    assert entries("tests/") == {name for name in tree("tests") if name.endswith("/")}


@pytest.mark.parametrize("folder", ["bench", "chaos", "deploy", "docs", "examples", "tools"])
def test_the_map_lists_the_other_folders(folder: str) -> None:
    assert re.search(rf"^{folder}/ ", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)


def test_every_name_in_the_text_exists() -> None:
    """Modules (`client/transport.py`) and classes or functions (`AckBatcher`, `decide`) named in the text."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "src/redrive").rglob("*.py"))
    for name in set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", text)):
        assert (ROOT / "src/redrive" / name).is_file(), name
    for name in set(re.findall(r"`([A-Z]\w+)(?:\.\w+)?(?:\(.*?\))?`", text)):
        assert re.search(rf"^\s*(class|def|async def) {name}\b|^{name}\b.*=", source, re.MULTILINE), name


def modules(package: Path) -> set[str]:
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    return packages | {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}


HEADS = sorted((ROOT / "src/redrive").rglob("__init__.py"))


@pytest.mark.parametrize("head", HEADS, ids=lambda path: str(path.parent.relative_to(ROOT / "src")))
def test_a_package_that_lists_its_modules_lists_all_of_them(head: Path) -> None:
    listed = set(re.findall(r"^\| `(\w+)`", ast.get_docstring(ast.parse(head.read_text())) or "", re.MULTILINE))
    if listed:
        assert listed - {"dashboards"} == modules(head.parent)
