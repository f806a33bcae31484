"""Rules of this repository that no linter knows: nothing speaks of one machine, every error is mapped, and so on."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import pydanube
from pydanube.codec.native.requests import Failure, decode, encode
from pydanube.model import errors

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pydanube"
MODULES = sorted((ROOT / "src").rglob("*.py"))

HOSTS = {
    "keepachangelog.com",
    "picocss.com",
    "semver.org",
    "www.apache.org",
    "apache.org",
    "example.com",
    "json-schema.org",
    "www.w3.org",
    "etcd.io",
    "www.standardwebhooks.com",
    "github.com",
    "danube-docs.dev-state.com",
    "127.0.0.1",
    "0.0.0.0",
    "localhost",
}
"""Whom our pages and programs may point at: anybody can reach them."""

RESERVED = re.compile(r"(.+\.)?example(\.org|\.com)?")
"""Names that are reserved for examples, so that no host has them."""

THIS_MACHINE = ["/" + "work/", "/" + "root/", "/" + "opt/wheels", "/home/" + "runner"]
INSTALLING = ["index-" + "url", "trusted-" + "host", "find-" + "links"]
"""How packages reach a machine is that machine's business."""


def tracked() -> list[Path]:
    """Everything that is published; without git, everything that looks like it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        folders = [ROOT / name for name in ("src", "tests", "docs", "examples", "benchmarks", "deploy")]
        paths = [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
    return sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts)


def texts() -> Iterator[tuple[str, str]]:
    for path in tracked():
        try:
            yield str(path.relative_to(ROOT)), path.read_text("utf-8")
        except UnicodeDecodeError:
            continue


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT / "src"))


# -- files -------------------------------------------------------------------------------------------------------------


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert not {name for name in names if names.count(name) > 1}
    assert "__init__.py" not in names


def test_modules_that_a_package_lists_are_there() -> None:
    listed = re.compile(r"^ *([a-z_0-9]+(?:, [a-z_0-9]+)*)/?  +\S", re.M)
    gone = [
        f"{name_of(init.parent)}: {module}"
        for init in (ROOT / "src" / "pydanube").rglob("__init__.py")
        for names in listed.findall(ast.get_docstring(ast.parse(init.read_text())) or "")
        for module in names.split(", ")
        if not (init.parent / f"{module}.py").exists() and not (init.parent / module / "__init__.py").exists()
    ]
    assert not gone


# -- words -------------------------------------------------------------------------------------------------------------


def test_nothing_speaks_of_one_machine() -> None:
    found = [
        f"{name}: {word}"
        for name, text in texts()
        for word in (*THIS_MACHINE, *INSTALLING)
        if word in text and name != "tests/test_repository.py"
    ]
    assert not found


def test_links_point_at_hosts_that_everybody_can_reach() -> None:
    url = re.compile(r"https?://([\w-]+(?:\.[\w-]+)+)")
    hosts = ((name, host) for name, text in texts() for host in url.findall(text))
    found = {f"{name}: {host}" for name, host in hosts if host not in HOSTS and not RESERVED.fullmatch(host)}
    assert not found, "add the host to HOSTS if anybody can reach it"


def test_nothing_is_put_off() -> None:
    mark = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    found = [name for name, text in texts() if name.endswith((".py", ".md", ".toml")) and mark.search(text)]
    assert not found


# -- the development environment ---------------------------------------------------------------------------------------


def test_the_lock_file_follows_the_ranges_of_pyproject() -> None:
    """Every requirement of the extras `test` and `dev` has versions in the lock file, all within its range."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked: dict[str, list[str]] = {}
    for line in (ROOT / "requirements-dev.lock").read_text().splitlines():
        requirement = Requirement(line)
        locked.setdefault(requirement.name, []).append(str(requirement.specifier).removeprefix("=="))
    extras = project["optional-dependencies"]
    wanted = [Requirement(text) for text in (*project["dependencies"], *extras["test"], *extras["dev"])]
    wanted += [
        Requirement(text) for one in wanted if one.name == "pydanube" for name in one.extras for text in extras[name]
    ]
    stale = [
        f"{one}: locked {locked.get(one.name)}"
        for one in wanted
        if one.name != "pydanube"
        and (one.name not in locked or not all(one.specifier.contains(version) for version in locked[one.name]))
    ]
    assert not stale, "run `make lock`"


# -- exceptions have reasons -------------------------------------------------------------------------------------------


def test_every_ruff_ignore_has_a_reason() -> None:
    """A comment on its own line, or on the line of the first of its family."""
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^ignore = \[\n(.*?)^\]", text, flags=re.MULTILINE | re.DOTALL)
    assert block is not None
    unexplained, family = [], ""
    for line in block[1].splitlines():
        code, _, comment = line.partition("#")
        name = re.sub(r"[^A-Z]", "", code)
        if comment.strip():
            family = name
        elif name != family:
            unexplained.append(code.strip())
    assert not unexplained
    assert set(tomllib.loads(text)["tool"]["ruff"]["lint"]["ignore"]) >= {"S101"}, "the block was the right one"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_every_exception_in_the_code_names_its_rule(module: Path) -> None:
    text = module.read_text()
    assert not re.search(r"# noqa(?!: [A-Z]+[0-9]+)", text), "say which rule: # noqa: RULE, and why"
    assert not re.search(r"# type: ignore(?!\[)", text), "say which error: # type: ignore[code]"


# -- errors, names, types ----------------------------------------------------------------------------------------------


def test_every_error_has_a_number_of_its_own() -> None:
    codes = [error.code for error in errors.tree()]
    assert len(set(codes)) == len(codes)
    assert sorted(codes) == list(range(1, len(codes) + 1)), "numbers are given out in order and never again"


@pytest.mark.parametrize("kind", errors.tree(), ids=lambda kind: kind.__name__)
def test_the_native_listener_maps_every_error(kind: type[errors.DanubeError]) -> None:
    sent = encode(Failure.of(kind("what, and what to do about it"), handle=7))
    received = decode(memoryview(sent), Failure).error()
    assert type(received) is kind
    assert received.message == "what, and what to do about it"


@pytest.mark.parametrize("kind", errors.tree(), ids=lambda kind: kind.__name__)
def test_every_error_is_public_and_says_what_to_do(kind: type[errors.DanubeError]) -> None:
    assert getattr(pydanube, kind.__name__) is kind
    assert kind.__doc__


def test_an_error_of_a_later_release_is_still_an_error() -> None:
    assert type(errors.from_code(9999, "new")) is errors.DanubeError


@pytest.mark.parametrize("name", pydanube.__all__)
def test_public_names_can_be_imported(name: str) -> None:
    assert getattr(importlib.import_module("pydanube"), name) is not None


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").is_file()


def test_importing_the_package_is_cheap() -> None:
    """Neither numpy nor the client is loaded before somebody uses them: the command line has to start at once."""
    program = "import sys, pydanube; print([name for name in ('numpy', 'pyarrow', 'asyncio') if name in sys.modules])"
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.strip() == "[]"
