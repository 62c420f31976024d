"""The files of a new service, as values: what would be written, and what is in the way.

They are written from the files in `template`. A name in double braces stands for what only the service knows, in a
file's text and in its path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from redrive.cli.init.names import ServiceName
from redrive.errors import ConfigurationError

_SUFFIX = ".in"  # so that no tool takes a template for the file that is made of it
_HOLE = re.compile(r"\{\{ (\w+) \}\}")
_RELEASE = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True, slots=True)
class File:
    path: PurePosixPath
    text: str


def make_plan(name: ServiceName, version: str) -> tuple[File, ...]:
    """All files of the service; `version` is that of the Redrive that it is made for."""
    words = {
        "project": name.project,
        "package": name.package,
        "prefix": name.prefix,
        "at_least": at_least(version),
    }
    template = files("redrive.cli.init") / "template"
    made = (File(_path(path, words), fill(text, words)) for path, text in _texts(template, PurePosixPath()))
    return tuple(sorted(made, key=lambda file: file.path))


def at_least(version: str) -> str:
    """Of a release, that one or a later. What is between two releases is in no index, and can only be there already."""
    return f">={version}" if _RELEASE.fullmatch(version) else ""


def fill(text: str, words: Mapping[str, str]) -> str:
    return _HOLE.sub(lambda hole: words[hole[1]], text)


def _texts(folder: Traversable, at: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _texts(entry, at / entry.name)
        elif entry.name.endswith(_SUFFIX):
            yield at / entry.name, entry.read_text(encoding="utf-8")


def _path(path: PurePosixPath, words: Mapping[str, str]) -> PurePosixPath:
    """`_package_/dot-gitignore.in` is `shop/.gitignore`: no tool is to take a template's folder for its own."""
    parts = [part.removesuffix(_SUFFIX).replace("_package_", words["package"]) for part in path.parts]
    return PurePosixPath(*(re.sub(r"^dot-", ".", part) for part in parts))


# Writing ------------------------------------------------------------------------------------------


def in_the_way(plan: tuple[File, ...], folder: Path) -> list[PurePosixPath]:
    """What is there already where something would be written: a file, a link, or a file where a folder should be."""
    return [path for path in _needed(plan) if _is_taken(folder / path, is_folder=path not in {f.path for f in plan})]


def _needed(plan: tuple[File, ...]) -> list[PurePosixPath]:
    folders = {parent for file in plan for parent in file.path.parents if parent.name}
    return sorted(folders | {file.path for file in plan})


def _is_taken(path: Path, *, is_folder: bool) -> bool:
    if is_folder:
        return (path.exists() or path.is_symlink()) and not path.is_dir()
    return path.exists() or path.is_symlink()


def write(plan: tuple[File, ...], folder: Path) -> None:
    """All of them, or, with something in the way, none. Nothing is written over, whoever comes first."""
    if taken := in_the_way(plan, folder):
        names = ", ".join(map(str, taken[:5])) + (f" and {len(taken) - 5} more" if len(taken) > 5 else "")
        raise ConfigurationError(
            f"{folder} has {names} already, and nothing is written over: say another name or folder"
        )
    for file in plan:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8", newline="\n") as writing:
            writing.write(file.text)
