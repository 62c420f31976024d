"""`redrive init`: names, files, and what is in the way."""

import re
from importlib.metadata import packages_distributions, requires
from pathlib import Path, PurePosixPath

import pytest
from click.testing import CliRunner, Result

from redrive.cli import main
from redrive.cli.init.names import LONGEST, THEIRS, ServiceName
from redrive.cli.init.plan import File, at_least, fill, in_the_way, make_plan, write
from redrive.errors import ConfigurationError

# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("shop", "shop"),
        ("order-desk", "order_desk"),
        ("order_desk", "order_desk"),
        ("s3-to-sql", "s3_to_sql"),
        ("a", "a"),
    ],
)
def test_a_name_is_the_projects_and_with_underscores_the_packages(name: str, package: str) -> None:
    service = ServiceName(name)
    assert service.package == package
    assert service.package.isidentifier()
    assert service.prefix == package.upper()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("class", "class-service"),
        ("match", "match-service"),
        ("queue", "queue-service"),
        ("email", "email-service"),
        ("redrive", "redrive-service"),
        ("sqlalchemy", "sqlalchemy-service"),
        ("tests", "tests-service"),
        ("Shop", "shop"),
        ("OrderDesk", "order-desk"),
        ("my shop", "my-shop"),
        ("über", "uber"),
        ("9lives", "lives"),
        ("a--b", "a-b"),
        ("-x", "x"),
        ("../../etc", "etc"),
        ("shop.app", "shop-app"),
        ("x" * (LONGEST + 1), "x" * LONGEST),
    ],
)
def test_a_name_that_will_not_do_is_refused_with_one_that_will(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f", did you mean {meant}?") + "$"):
        ServiceName(name)
    ServiceName(meant)


@pytest.mark.parametrize("name", ["", " ", "---", "中文", "💥", "42", "\0", "\n"])
def test_of_some_names_nobody_can_tell_what_was_meant(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name for a service: want small letters") as refused:
        ServiceName(name)
    assert "did you mean" not in str(refused.value)


def test_no_package_that_redrive_needs_can_be_hidden() -> None:
    needed = {re.match(r"[\w-]+", text)[0].lower() for text in requires("redrive") or () if not _is_a_peers(text)}  # type: ignore[index]
    modules = {
        module
        for module, owners in packages_distributions().items()
        if {owner.lower() for owner in owners} & needed and not module.startswith("_")
    }
    assert {"msgspec", "sqlalchemy", "fastapi"} <= modules
    assert modules <= THEIRS


def _is_a_peers(requirement: str) -> bool:
    """Development's own: nobody who runs a service imports it."""
    return bool(re.search(r"""extra == ['"](dev|bench|docs|peers)['"]""", requirement))


# Files --------------------------------------------------------------------------------------------


def test_every_hole_is_filled() -> None:
    for file in make_plan(ServiceName("order-desk"), "1.2.3"):
        assert "{{" not in file.text
        assert "_package_" not in str(file.path)


def test_the_files_are_a_project() -> None:
    paths = {str(file.path) for file in make_plan(ServiceName("order-desk"), "1.2.3")}
    assert {
        ".dockerignore",
        ".env.example",
        ".gitignore",
        "Dockerfile",
        "README.md",
        "compose.yaml",
        "order_desk/app.py",
        "order_desk/py.typed",
        "order_desk/settings.py",
        "pyproject.toml",
        "tests/test_app.py",
    } <= paths


def test_a_hole_that_nobody_can_fill_is_an_error() -> None:
    assert fill("a {{ b }} c {{b}} {{ d", {"b": "x"}) == "a x c {{b}} {{ d"
    with pytest.raises(KeyError):
        fill("{{ pakage }}", {"package": "shop"})


@pytest.mark.parametrize(
    ("version", "wanted"), [("1.2.3", ">=1.2.3"), ("0.1.0.dev170+g9cacdca.dirty", ""), ("1.0.0rc2.dev1+g1234567", "")]
)
def test_a_service_asks_for_the_release_that_made_it_or_a_later(version: str, wanted: str) -> None:
    assert at_least(version) == wanted
    [project] = [f for f in make_plan(ServiceName("shop"), version) if f.path.name == "pyproject.toml"]
    assert f'"redrive[admin,postgres]{wanted}"' in project.text


# Writing ------------------------------------------------------------------------------------------

PLAN = (File(PurePosixPath("a.txt"), "a\n"), File(PurePosixPath("deep/er/b.txt"), "b\n"))


def test_nothing_is_in_the_way_of_what_is_new(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "other.txt").touch()
    assert in_the_way(PLAN, tmp_path) == []
    write(PLAN, tmp_path)
    assert (tmp_path / "deep" / "er" / "b.txt").read_text() == "b\n"


@pytest.mark.parametrize("taken", ["file", "folder", "dangling link", "file for a folder"])
def test_with_anything_in_the_way_nothing_is_written(tmp_path: Path, taken: str) -> None:
    match taken:
        case "file":
            (tmp_path / "a.txt").write_text("mine")
        case "folder":
            (tmp_path / "a.txt").mkdir()
        case "dangling link":
            (tmp_path / "a.txt").symlink_to("nowhere")
        case "file for a folder":
            (tmp_path / "deep").write_text("mine")
    name = "deep" if taken == "file for a folder" else "a.txt"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError, match=f"has {name} already, and nothing is written over"):
        write(PLAN, tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


# The command --------------------------------------------------------------------------------------


def init(*words: str) -> Result:
    return CliRunner().invoke(main, ["init", *words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_says_what_it_made_and_which_three_commands_come_next(folder: Path) -> None:
    told = init("order-desk")
    assert told.exit_code == 0
    assert "order-desk/order_desk/app.py\n" in told.stdout
    assert all((folder / line).is_file() for line in told.stdout.splitlines())
    assert [line.strip() for line in told.stderr.splitlines()[-3:]] == [
        "cd order-desk && pip install --editable '.[dev]'",
        "pytest",
        "redrive worker --relay order_desk.app:app",
    ]


def test_here_is_this_folder_and_what_is_in_it_stays(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / "notes.txt").write_text("mine")
    told = init("order-desk", "--here")
    assert told.exit_code == 0
    assert (folder / "order_desk" / "app.py").is_file()
    assert (folder / "notes.txt").read_text() == "mine"
    assert "cd " not in told.stderr


def test_a_second_time_it_says_what_is_there(folder: Path) -> None:
    assert init("shop").exit_code == 0
    (folder / "shop" / "shop" / "app.py").write_text("mine")
    told = init("shop")
    assert told.exit_code == 2
    assert "shop has .dockerignore, .env.example, .gitignore, Dockerfile, README.md and" in told.stderr
    assert (folder / "shop" / "shop" / "app.py").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_told_in_a_sentence(folder: Path) -> None:
    (folder / "shop").write_text("mine")
    told = init("shop")
    assert told.exit_code == 2
    assert told.stderr.startswith("redrive: cannot write ")
    assert (folder / "shop").read_text() == "mine"


def test_a_name_that_will_not_do_makes_nothing(folder: Path) -> None:
    told = init("queue")
    assert told.exit_code == 2
    assert "did you mean queue-service?" in told.stderr
    assert list(folder.iterdir()) == []
