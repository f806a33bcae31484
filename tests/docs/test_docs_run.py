"""Every code block of README.md and docs/ that can run, runs: in `make test` those of the pages that are read first, in
`make test-all` all. CONTRIBUTING.md says how blocks are read.

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
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from etcd_cluster import free_shift, missing_etcd
from served import ROOT, Place, environment_of

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "shell", "console"}
OTHER_NAMES = {"py", "bash", "sh", "pycon", "python3", "zsh"}
BLOCK_SECONDS_MAX = 300
"""Catches a block that hangs, not a busy machine."""
ADDRESS = "127.0.0.1:6655"
HTTP_ADDRESS = "127.0.0.1:8650"
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>\w*)[^\n`]*$")
PRINTED = "<!-- printed -->"
FILE = re.compile(r"<!-- file: (?P<name>[\w./-]+) -->")
TERMINAL = re.compile(r"<!-- terminal (?P<number>\d), until: (?P<until>.+?) -->")
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+?) -->")
MAKE_CLUSTER = "make cluster"
"""A page with a block that says this is about a cluster on this machine, and has no other broker."""
READ_FIRST = (
    "README.md",
    "docs/start/",
    "docs/tutorials/",
    "docs/client.md",
    "docs/http-data.md",
    "docs/security.md",
    "docs/spark/README.md",
    "docs/spark/writing.md",
    "docs/storage/index.md",
)
"""The way of a newcomer through all parts of the product; `make test-all` follows every page."""
PROGRAM = re.compile(r"\basyncio\.run\(|\bconnect_blocking\(|\bbroker_thread\(")


@dataclass(frozen=True)
class Block:
    language: str
    line: int
    source: str
    not_run: str
    printed: bool
    """Whether it is what the program of the block before prints."""
    file: str
    """The file that the reader writes it to, instead of running it."""
    terminal: tuple[str, str]
    """The other terminal in which it goes on running, and what it prints when it is ready."""


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
        file, terminal = FILE.fullmatch(above), TERMINAL.fullmatch(above)
        yield Block(
            opening["language"],
            start,
            source,
            mark["reason"] if mark else "",
            above == PRINTED,
            file["name"] if file else "",
            (terminal["number"], terminal["until"]) if terminal else ("", ""),
        )
        number += 1


def has_code(page: Path) -> bool:
    return any(
        block.language in LANGUAGES and not block.not_run and not block.file for block in blocks_of(page.read_text())
    )


def uses_cluster(page: Path) -> bool:
    return any(block.source == MAKE_CLUSTER and block.terminal[0] for block in blocks_of(page.read_text()))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def uses_spark(page: Path) -> bool:
    return any("pydanube.spark" in block.source and not block.not_run for block in blocks_of(page.read_text()))


def with_code() -> Iterator[Any]:
    """Pages that use Spark run where the one Spark of all tests is."""
    for page in PAGES:
        if has_code(page) and not uses_cluster(page):
            marks = [pytest.mark.xdist_group("spark")] if uses_spark(page) else []
            if not name_of(page).startswith(READ_FIRST):
                marks.append(pytest.mark.exhaustive)
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
    monkeypatch.syspath_prepend(place.directory)  # type: ignore[no-untyped-call]
    for block in blocks_of(page.read_text()):
        monkeypatch.delitem(sys.modules, block.file.removesuffix(".py"), raising=False)  # of another page
    follow(page, place, {ADDRESS: place.address, HTTP_ADDRESS: place.http_address})


@pytest.mark.etcd
@pytest.mark.process
@pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there")
@pytest.mark.parametrize("page", [page for page in PAGES if uses_cluster(page)], ids=name_of)
def test_what_the_page_about_a_cluster_shows_happens(page: Path, tmp_path: Path) -> None:
    """`make cluster` runs in the reader's directory, with all ports moved to free ones."""
    shift = free_shift()
    addresses = {f"127.0.0.1:{port}": f"127.0.0.1:{port + shift}" for port in (6655, 6656, 6657, 8650, 8651, 8652)}
    make = f"{sys.executable} {ROOT / 'deploy/cluster/run.py'} --shift {shift}"
    environment = environment_of(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    url = f"danube://{','.join([*addresses.values()][:3])}"
    place = Place(work, addresses[ADDRESS], addresses[HTTP_ADDRESS], {**environment, "DANUBE_URL": url})
    follow(page, place, {**addresses, MAKE_CLUSTER: make})


def follow(page: Path, place: Place, replaced: dict[str, str]) -> None:
    """Do what a page says, block by block; `replaced` says what else is meant by its texts here."""
    with asyncio.Runner() as session, Terminals(place) as terminals:
        names: dict[str, Any] = {"__name__": "__main__"}
        printed = ""
        for block in blocks_of(page.read_text()):
            if block.printed:
                assert is_as_shown(printed, f"{block.source}\n"), f"line {block.line}: the program prints\n{printed}"
            if block.not_run or (block.language not in LANGUAGES and not block.file):
                continue
            source = block.source
            for text, meant in replaced.items():
                source = source.replace(text, meant)
            try:
                if block.file:
                    (place.directory / block.file).write_text(f"{source}\n")
                elif block.terminal[0]:
                    session.run(asyncio.to_thread(terminals.run, *block.terminal, source))
                elif block.language != "python":
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


class Terminals:
    """The other terminals of the reader: each runs one command, until the next one in it or the end of the page."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in [*self._running]:
            self._stop(number)

    def run(self, number: str, until: str, command: str) -> None:
        """Start the command; return when it has printed `until`."""
        self._stop(number)
        self._running[number] = process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", f"exec {command}"],
            cwd=self._place.directory,
            env=self._place.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if until in line:
                threading.Thread(target=process.stdout.read, daemon=True).start()  # so that its pipe is never full
                return
        raise AssertionError(f"{command}\nended, and printed\n{''.join(printed)}")

    def _stop(self, number: str) -> None:
        """End what runs there as Ctrl-C would."""
        process = self._running.pop(number, None)
        if process is None:
            return
        try:
            process.send_signal(signal.SIGINT)
            process.wait(BLOCK_SECONDS_MAX)
        finally:
            process.kill()
            process.wait()


# -- how a block is run ------------------------------------------------------------------------------------------------


async def run_in_session(source: str, names: dict[str, Any], where: str) -> None:
    """As `python -m asyncio` would: top-level await is allowed, and names stay."""
    code = compile(source, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
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
