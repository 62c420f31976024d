"""The version comes from git's tags."""

import subprocess
from pathlib import Path

import pytest

import redrive
from redrive.version import FIRST, UNKNOWN, read_description, version, version_of


@pytest.mark.parametrize(
    ("described", "commits", "means"),
    [
        ("v0.2.0-0-g1a2b3c4", 0, "0.2.0"),
        ("v0.2.0-5-g1a2b3c4", 0, "0.2.1.dev5+g1a2b3c4"),
        ("v0.2.0-0-g1a2b3c4-dirty", 0, "0.2.1.dev0+g1a2b3c4.dirty"),
        ("v0.2.0-5-g1a2b3c4-dirty", 0, "0.2.1.dev5+g1a2b3c4.dirty"),
        ("v0.2.9-12-g1a2b3c4", 0, "0.2.10.dev12+g1a2b3c4"),
        ("v1.0.0rc1-0-g1a2b3c4", 0, "1.0.0rc1"),
        ("v1.0.0rc1-5-g1a2b3c4", 0, "1.0.0rc2.dev5+g1a2b3c4"),
        ("v2-1-g1a2b3c4", 0, "3.dev1+g1a2b3c4"),
        ("1a2b3c4", 170, f"{FIRST}.dev170+g1a2b3c4"),
        ("1a2b3c4-dirty", 170, f"{FIRST}.dev170+g1a2b3c4.dirty"),
        ("1a2b3c4\n", 1, f"{FIRST}.dev1+g1a2b3c4"),
        ("", 0, UNKNOWN),
        ("fatal: no names found", 0, UNKNOWN),
    ],
)
def test_what_git_says_is_read_as_a_version(described: str, commits: int, means: str) -> None:
    assert read_description(described, commits) == means


def test_versions_are_in_the_order_in_which_their_commits_were_made() -> None:
    from packaging.version import Version

    told = ["1a2b3c4", "v0.1.0-0-g1a2b3c4", "v0.1.0-5-g1a2b3c4", "v0.1.1rc1-0-g1a2b3c4", "v0.1.1rc1-3-g1a2b3c4"]
    made = [read_description(text, 170) for text in [*told, "v0.1.1-0-g1a2b3c4", "v0.1.1-1-g1a2b3c4"]]

    assert sorted(made, key=Version) == made


def test_the_packages_own_is_the_same_wherever_one_asks() -> None:
    assert redrive.__version__ == version()
    with pytest.raises(AttributeError, match="has no attribute 'verison'"):
        getattr(redrive.version, "verison")  # noqa: B009 - a typist's mistake


# A folder in which the package may be -------------------------------------------------------------


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "redrive"\n')
    return tmp_path


@pytest.fixture
def checkout(home: Path) -> Path:
    git(home, "init", "--quiet")
    git(home, "add", ".")
    git(home, "commit", "--quiet", "--message", "begin")
    return home


def test_a_checkout_without_tags_counts_its_commits(checkout: Path) -> None:
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "go on")
    assert version_of(checkout).startswith(f"{FIRST}.dev2+g")


def test_a_tagged_commit_is_its_tag_and_no_other_tag_counts(checkout: Path) -> None:
    git(checkout, "tag", "v0.3.0")
    git(checkout, "tag", "vacation")
    git(checkout, "tag", "nightly-7")
    assert version_of(checkout) == "0.3.0"


def test_what_follows_a_tag_and_what_was_changed_is_told_at_once(checkout: Path) -> None:
    git(checkout, "tag", "--annotate", "v0.3.0", "--message", "the third")
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "go on")
    assert version_of(checkout).startswith("0.3.1.dev1+g")
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("\n")
    assert version_of(checkout).endswith(".dirty")


def test_files_that_git_does_not_know_make_no_difference(checkout: Path) -> None:
    git(checkout, "tag", "v0.3.0")
    (checkout / "notes.txt").touch()
    assert version_of(checkout) == "0.3.0"


def test_a_hook_of_another_repository_does_not_lead_astray(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(checkout, "tag", "v0.3.0")
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert version_of(checkout) == "0.3.0"


def test_a_checkout_with_no_commit_or_without_git_is_unknown(
    home: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert version_of(checkout) == UNKNOWN
    monkeypatch.undo()
    (home / ".git" / "HEAD").write_text("ref: refs/heads/nothing-yet\n")
    assert version_of(home) == UNKNOWN


def test_a_source_distribution_says_it_itself(home: Path) -> None:
    (home / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: redrive\nVersion: 0.3.0\n\nVersion: of a story\n")
    assert version_of(home) == "0.3.0"


def test_files_without_git_and_without_metadata_are_unknown(home: Path) -> None:
    assert version_of(home) == UNKNOWN


def test_the_tags_of_a_project_that_keeps_a_copy_are_not_ours(checkout: Path) -> None:
    from importlib.metadata import version as installed

    (checkout / "pyproject.toml").write_text('[project]\nname = "shop"\n')
    git(checkout, "commit", "--quiet", "--all", "--message", "theirs")
    git(checkout, "tag", "v7.0.0")
    assert version_of(checkout) == installed("redrive")
