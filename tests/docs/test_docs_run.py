"""Every code block of README.md and docs/ that can run, runs. CONTRIBUTING.md says how blocks are read.

Each page is one reader with one fresh broker: its blocks run in order, names carry over from one Python block to the
next, and whatever a page says that a command prints is compared with what it prints. What one block has opened lives on
while commands run, as it does in `python -m asyncio`.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from served import ROOT, Place

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "shell", "console"}
OTHER_NAMES = {"py", "bash", "sh", "pycon", "python3", "zsh"}
BLOCK_SECONDS_MAX = 300
"""Catches a block that hangs, not a busy machine."""
ADDRESS = "127.0.0.1:6655"
HTTP_ADDRESS = "127.0.0.1:8650"
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>\w*)[^\n`]*$")
PRINTED = "<!-- printed -->"
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+?) -->")
PROGRAM = re.compile(r"\basyncio\.run\(|\bconnect_blocking\(|\bbroker_thread\(")


@dataclass(frozen=True)
class Block:
    language: str
    line: int
    source: str
    not_run: str
    printed: bool
    """Whether it is what the program of the block before prints."""


def blocks_of(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        number += 1
        if opening is None:
            continue
        start = number
        while number < len(lines) and lines[number].strip() != opening["fence"]:
            number += 1
        above = lines[start - 2].strip() if start > 1 else ""
        mark = NOT_RUN.fullmatch(above)
        source = textwrap.dedent("\n".join(lines[start:number]))
        yield Block(opening["language"], start, source, mark["reason"] if mark else "", above == PRINTED)
        number += 1


def has_code(page: Path) -> bool:
    return any(block.language in LANGUAGES and not block.not_run for block in blocks_of(page.read_text()))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def uses_spark(page: Path) -> bool:
    return any("pydanube.spark" in block.source and not block.not_run for block in blocks_of(page.read_text()))


def with_code() -> Iterator[Any]:
    """Pages that use Spark run where the one Spark of all tests is."""
    for page in PAGES:
        if has_code(page):
            marks = [pytest.mark.xdist_group("spark")] if uses_spark(page) else []
            yield pytest.param(page, marks=marks, id=name_of(page))


@pytest.mark.process
@pytest.mark.parametrize("page", [*with_code()])
def test_what_the_page_shows_happens(
    page: Path, place: Place, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if uses_spark(page):
        request.getfixturevalue("the_spark")
    monkeypatch.chdir(place.directory)
    monkeypatch.setenv("DANUBE_URL", place.environment["DANUBE_URL"])
    with asyncio.Runner() as session:
        names: dict[str, Any] = {"__name__": "__main__"}
        printed = ""
        for block in blocks_of(page.read_text()):
            if block.printed:
                assert is_as_shown(printed, f"{block.source}\n"), f"line {block.line}: the program prints\n{printed}"
            if block.language not in LANGUAGES or block.not_run:
                continue
            source = block.source.replace(ADDRESS, place.address).replace(HTTP_ADDRESS, place.http_address)
            try:
                if block.language != "python":
                    session.run(asyncio.to_thread(run_commands, source, block.language, place))
                elif PROGRAM.search(source):
                    printed = session.run(asyncio.to_thread(run_program, source, place))
                else:
                    session.run(run_in_session(source, names, f"{page}, the block in line {block.line}"))
            except Exception as error:
                error.add_note(f"{name_of(page)}, the {block.language} block in line {block.line}")
                raise


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_are_named_so_that_they_are_run(page: Path) -> None:
    blocks = list(blocks_of(page.read_text()))
    misnamed = [(block.language, block.line) for block in blocks if block.language in OTHER_NAMES]
    assert not misnamed, f"call the language one of {sorted(LANGUAGES)}"


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = "".join(re.split(r"^```.*?^```", page.read_text(), flags=re.MULTILINE | re.DOTALL))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith("#"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve()
        assert found.exists(), f"{name_of(page)} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors_of(found.read_text()), f"{name_of(page)} links to {target}: no such heading"


def anchors_of(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# -- how a block is run ------------------------------------------------------------------------------------------------


async def run_in_session(source: str, names: dict[str, Any], where: str) -> None:
    """As `python -m asyncio` would: top-level await is allowed, and names stay."""
    code = compile(source, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with asyncio.timeout(BLOCK_SECONDS_MAX):
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result


def run_program(source: str, place: Place) -> str:
    finished = subprocess.run(
        [sys.executable, "-"],
        input=source,
        cwd=place.directory,
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=BLOCK_SECONDS_MAX,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def is_as_shown(printed: str, wanted: str) -> bool:
    """Return whether it prints what the page shows, where `...` stands for anything."""
    return doctest.OutputChecker().check_output(wanted, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


def run_commands(source: str, language: str, place: Place) -> None:
    if language == "shell":
        lines = [line for line in source.splitlines() if not re.fullmatch(r"danube serve *(#.*)?", line)]
        run_shell("\n".join(lines), place)
        return
    for command, wanted in transcript(source):
        printed = run_shell(command, place)
        if not is_as_shown(printed, wanted):
            raise AssertionError(f"$ {command}\nprints\n{printed}\nand the page says\n{wanted}")


def transcript(source: str) -> Iterator[tuple[str, str]]:
    """Each command with what the page says it prints."""
    for part in re.split(r"^\$ ", source, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command = f"{command}\n{more}"
        yield command, f"{output.strip()}\n" if output.strip() else ""


def run_shell(script: str, place: Place) -> str:
    """Stops at the first failure. What it prints, both ways, as a terminal would show it."""
    finished = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=place.directory,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BLOCK_SECONDS_MAX,
    )
    assert finished.returncode == 0, f"{script}\nended with {finished.returncode}:\n{finished.stdout}"
    return finished.stdout
