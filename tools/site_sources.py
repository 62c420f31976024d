"""Where the files of the repository stand in the site.

The pages under docs/ link to one another, and also to what is beside docs/: the example programs, the benchmark's
results, the changelog. In the repository such a link (`../examples/raffle`) works because the file is there. In the
site it works because the file has a page there as well:

| in the repository                  | in the site                                              |
|------------------------------------|----------------------------------------------------------|
| `docs/workers.md`                  | `workers.md`                                             |
| `docs/decisions/`                  | `decisions/README.md` or `decisions/index.md`             |
| `CHANGELOG.md` and others, `HOMES` | a page of the manual: the file itself, not a copy of it  |
| `examples/raffle`, a folder        | `repository/examples/raffle/index.md`: README and files  |
| `examples/raffle/app.py`, a text   | `repository/examples/raffle/app.py.md`: the text         |
| `chaos/results.jsonl`, data        | `repository/chaos/results.jsonl`: copied                 |

Only what is linked to has a page, so nothing is to be listed anywhere. A link to what is not there is left as it is,
and a strict build fails on it.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

HOMES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "ARCHITECTURE.md": "architecture.md"}
BESIDE = "repository"

_LARGEST = 64_000  # bytes of a text that is shown on a page; a longer one is data
_PICTURES = (".svg", ".png", ".jpg", ".gif")
_LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".sh": "bash"}
_LANGUAGES |= {".sql": "sql", ".xml": "xml", ".conf": "ini", ".ini": "ini", ".service": "ini"}

# Code is stepped over: what looks like a link in it is none.
_FENCED = r"^(?P<fence> *(?:```+|~~~+)).*?^(?P=fence) *$"
_LINK = re.compile(
    _FENCED + r"|`[^`\n]*`|(?P<before>\]\(<?)(?P<target>[^)>\s]+)(?P<after>[)>\s])", re.MULTILINE | re.DOTALL
)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#|/", re.IGNORECASE)


def links(text: str) -> Iterator[str]:
    """What a Markdown text links to, in the repository, without anchors."""
    for found in _LINK.finditer(text):
        target = found["target"]
        if target is not None and not _ELSEWHERE.match(target):
            yield target.partition("#")[0]


def target_of(link: str, origin: str) -> str | None:
    """The path in the repository that a file's link means, or None if it leads out of it."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
    return None if path.startswith("..") else path


def place(path: str, root: Path) -> str | None:
    """Where a path of the repository stands in the site; None if there is no such path."""
    real = root / path
    if not real.exists():
        return None
    if path == "docs" or path.startswith("docs/"):
        inside = path.removeprefix("docs").removeprefix("/")
        return posixpath.join(inside, _index(real)) if real.is_dir() else inside
    if path in HOMES:
        return HOMES[path]
    if real.is_dir():
        return posixpath.join(BESIDE, path, "index.md")
    if posixpath.basename(path) == "README.md":
        return posixpath.join(BESIDE, posixpath.dirname(path), "index.md")
    if path.endswith(".md"):
        return posixpath.join(BESIDE, path)
    return posixpath.join(BESIDE, f"{path}.md" if _is_shown(real) else path)


def relink(text: str, origin: str, page: str, root: Path) -> str:
    """A file's text with its links as they must be where its page stands."""
    start = posixpath.dirname(page) or "."

    def moved(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or _ELSEWHERE.match(target):
            return found[0]
        link, hash_, anchor = target.partition("#")
        path = target_of(link, origin)
        at = place(path, root) if path is not None else None
        return (
            found[0]
            if at is None
            else f"{found['before']}{posixpath.relpath(at, start)}{hash_}{anchor}{found['after']}"
        )

    return _LINK.sub(moved, text)


def _index(folder: Path) -> str:
    """MkDocs takes either for the page of a folder of docs/."""
    return "README.md" if (folder / "README.md").exists() else "index.md"


# Pages of what is beside docs/ ----------------------------------------------------------------------------


def page_of(path: str, root: Path) -> tuple[str, str]:
    """The Markdown of a folder's or a file's page, and the file that its links are relative to."""
    real = root / path
    if real.is_dir() or (posixpath.basename(path) == "README.md" and path not in HOMES):
        folder = path if real.is_dir() else posixpath.dirname(path)
        return _folder(folder, root), posixpath.join(folder, "README.md")
    if path.endswith(".md"):
        return real.read_text(), path
    return _file(path, real.read_text()), path


def _folder(path: str, root: Path) -> str:
    readme = root / path / "README.md"
    head = readme.read_text() if readme.exists() else f"# {path}\n"
    listed = "\n".join(f"- [{name}]({name}){_says(root / path / name)}" for name in _files(root / path))
    return f"{head}\n## Files\n\n{listed}\n"


def _files(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "README.md")
    inside = (path.relative_to(folder) for path in found)
    return sorted(
        path.as_posix() for path in inside if not any(part.startswith((".", "__pycache__")) for part in path.parts)
    )


def _says(path: Path) -> str:
    """What a module or a page says of itself, in a line."""
    if path.suffix == ".md":
        return f": {path.read_text().partition('# ')[2].partition(chr(10))[0]}"
    said = ast.get_docstring(ast.parse(path.read_text())) if path.suffix == ".py" else None
    return f": {said.splitlines()[0]}" if said else ""


def _file(path: str, text: str) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    folder = posixpath.dirname(path)
    beside = f"In [{folder}](.).\n\n" if folder else ""
    # The manual is what one searches; the programs would drown it.
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n{beside}"
    return f"{head}{fence}{_LANGUAGES.get(posixpath.splitext(path)[1], 'text')}\n{text.rstrip()}\n{fence}\n"


def _is_shown(path: Path) -> bool:
    if path.suffix in _PICTURES or path.stat().st_size > _LARGEST:
        return False
    try:
        path.read_text()
    except UnicodeDecodeError:
        return False
    return True


def needed(pages: Sequence[tuple[str, str]], root: Path) -> dict[str, str]:
    """What pages have to be made, by their place, from which path, so that every link of `pages` (origin, text) leads
    somewhere; and of those pages' own links, and so on."""
    made: dict[str, str] = {}
    waiting = list(pages)
    while waiting:
        origin, text = waiting.pop()
        for link in links(text):
            path = target_of(link, origin)
            at = place(path, root) if path is not None else None
            if path is None or at is None or at in made or _has_file(at, root):
                continue
            made[at] = path
            if at.endswith(".md"):
                content, base = page_of(path, root)
                waiting.append((base, content))
    return made


def _has_file(at: str, root: Path) -> bool:
    return (root / "docs" / at).exists()
