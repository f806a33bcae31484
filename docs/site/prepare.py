"""Stages the pages of the site: `python docs/site/prepare.py DIRECTORY`, which `make docs` does.

The pages are those of README.md, docs/ and the other Markdown files of the repository, with their links turned to where
the pages are on the site, and the reference, which is made from the code. Marks for the tests of the documentation are
left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import pydanube
from pydanube.cli.root import cli
from pydanube.gateway.grpc.errors import STATUS as GRPC_STATUS
from pydanube.gateway.http.api.openapi import document
from pydanube.gateway.http.api.table import OPERATIONS
from pydanube.gateway.http.errors import STATUS as HTTP_STATUS
from pydanube.model.errors import DanubeError

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SITE = Path(__file__).parent
TOP_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
ATTRIBUTE = re.compile(r'\b(src|srcset|href)="(?!\w+:|#)([^"#]+)(#[^"]*)?"')
MARK = re.compile(r"^ *<!-- (?:not run: .*|printed|file: .*|terminal .*|settings: .*) -->\n", re.MULTILINE)
ITEM = re.compile(r"(?:[-*]|\d+\.) ")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
VALUES = ("model", "schemas", "replies", "receipts", "outcomes", "messages", "tables", "ticks", "handlers", "observing")


def main(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    pages = directory / "pages"
    pages.mkdir(parents=True)
    for name in ("mkdocs.yml", "edit_links.py", "docstrings.py"):
        shutil.copy(SITE / name, directory)
    shutil.copy(SITE / "site.css", pages)
    places = dict(places_of_pages())
    for source, place in places.items():
        target = pages / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(turned(source, place, places))
        else:
            shutil.copy(source, target)
    reference = pages / "reference"
    reference.mkdir()
    for name, text in (
        ("api.md", api("The Python API", "", lambda one: not is_blocking(one) and not is_value(one))),
        ("api-blocking.md", api("The blocking client", "As the asynchronous one, without `await`.", is_blocking)),
        ("api-values.md", api("Values, policies and errors of the API", "", is_value)),
        ("errors.md", errors()),
        ("commands.md", commands()),
        ("rest.md", rest()),
        ("metrics.md", metrics()),
    ):
        (reference / name).write_text(text)


# -- pages of the repository -------------------------------------------------------------------------------------------


def places_of_pages() -> Iterator[tuple[Path, str]]:
    """Each page and picture with its place on the site. The README is its start, docs/index.md lists all pages."""
    yield ROOT / "README.md", "index.md"
    yield DOCS / "index.md", "contents.md"
    for name in TOP_PAGES:
        yield ROOT / name, name
    for path in sorted(DOCS.rglob("*")):
        if path.is_file() and path.suffix in {".md", ".svg", ".png"} and path != DOCS / "index.md":
            yield path, str(path.relative_to(DOCS))


def turned(source: Path, place: str, places: dict[Path, str]) -> str:
    """Return the text of a page, with links to other pages as they are on the site, and to files as on the host."""

    def turn(found: re.Match[str]) -> str:
        target = (source.parent / found[1]).resolve()
        if target == DOCS:
            target = DOCS / "index.md"
        if target in places:
            return os.path.relpath(places[target], Path(place).parent) + (found[2] or "")
        repository = os.environ.get("DOCS_REPOSITORY", "")
        kind = "tree" if target.is_dir() else "blob"
        return f"{repository}/{kind}/main/{target.relative_to(ROOT)}" if repository else "NOWHERE"

    def turn_attribute(found: re.Match[str]) -> str:
        link = LINK.search(f"]({found[2]}{found[3] or ''})")
        assert link is not None
        return f'{found[1]}="{turn(link)}"'

    parts = FENCE.split(MARK.sub("", source.read_text()))
    texts = [
        part if number % 2 else ATTRIBUTE.sub(turn_attribute, LINK.sub(turn, part)) for number, part in enumerate(parts)
    ]
    text = re.sub(r"\[([^]]+)\]\(NOWHERE\)", r"\1", "".join(texts))  # without a host, what is no page is no link
    hide = "hide: [navigation]\n" if place == "index.md" else ""
    return f"---\nedit_path: {source.relative_to(ROOT)}\n{hide}---\n\n{listed(text)}"


def listed(text: str) -> str:
    """Put an empty line before lists that follow a paragraph at once: Markdown of the site does not see them else."""
    lines: list[str] = []
    is_code = False
    for line in text.splitlines():
        is_code ^= line.lstrip().startswith("```")
        begins = bool(ITEM.match(line)) and not is_code
        if begins and lines and lines[-1] and not ITEM.match(lines[-1]) and not lines[-1].startswith((" ", "|", "#")):
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


# -- the reference, from the code --------------------------------------------------------------------------------------


def is_blocking(name: str) -> bool:
    return "locking" in name


def is_value(name: str) -> bool:
    where = getattr(getattr(pydanube, name), "__module__", "") or ""
    return not is_blocking(name) and any(part in where.split(".") for part in VALUES)


def api(title: str, text: str, wanted: Any) -> str:
    """A page for mkdocstrings: each public name by the module that defines it."""
    entries = []
    for name in sorted(pydanube.__all__):
        one = getattr(pydanube, name)
        if callable(one) and wanted(name):
            entries.append(
                f"## {name}\n\n::: {one.__module__}.{one.__qualname__}\n    options:\n      show_root_heading: false\n"
            )
    return f"# {title}\n\n{text}\n\n" + "\n".join(entries)


def errors() -> str:
    """The tree of errors, with the statuses of the listeners."""
    rows = []

    def add(kind: type[DanubeError], depth: int) -> None:
        says = " ".join((kind.__doc__ or "").split())
        grpc = GRPC_STATUS.get(kind)
        name = grpc.name if grpc else "as its base"
        rows.append(f"| {'&nbsp;' * 4 * depth}`{kind.__name__}` | {says} | {HTTP_STATUS.get(kind, '')} | {name} |")
        for one in kind.__subclasses__():
            if one.__module__ == DanubeError.__module__:
                add(one, depth + 1)

    add(DanubeError, 0)
    return (
        "# Errors and what to do about them\n\nEvery error of the client, the commands and the listeners is one of "
        "these. Its class says what to do; its message names the thing and the remedy.\n\n"
        "| error | what to do | HTTP | gRPC |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def commands() -> str:
    """Every command with its help, as the terminal shows it."""
    parts = ["# Every command\n\nAs `danube COMMAND --help` prints it.\n"]

    def add(command: click.Command, path: str, parent: click.Context | None) -> None:
        context = click.Context(command, info_name=path.split()[-1], parent=parent, max_content_width=100)
        with context:
            parts.append(f"## {path}\n\n```text\n{command.get_help(context).strip()}\n```\n")
            if isinstance(command, click.Group):
                for name in command.list_commands(context):
                    found = command.get_command(context, name)
                    if found is not None and not found.hidden:
                        add(found, f"{path} {name}", context)

    add(cli, "danube", None)
    return "\n".join(parts)


def rest() -> str:
    """The operations of the REST API by area, from the OpenAPI document."""
    found = document(OPERATIONS)
    areas: dict[str, list[str]] = {one["name"]: [] for one in found["tags"]}
    for path, methods in found["paths"].items():
        for method, one in methods.items():
            parameters = ", ".join(f"`{p['name']}`" for p in one.get("parameters", ()) if p["in"] == "query")
            answers = ", ".join(sorted(one["responses"]))
            areas[one["tags"][0]].append(
                f"| `{method.upper()}` | `{path}` | {one['summary']} | {parameters} | {answers} |"
            )
    text = (
        "# Every operation of the REST API\n\nA running broker serves this as an OpenAPI document at `/openapi.json`.\n"
    )
    for area, rows in areas.items():
        says = next(one["description"] for one in found["tags"] if one["name"] == area)
        text += (
            f"\n## {area}\n\n{says}\n\n| | path | does | query | answers |\n|---|---|---|---|---|\n"
            + "\n".join(rows)
            + "\n"
        )
    return text


def metrics() -> str:
    """The metrics of a broker, as it exports them."""
    with tempfile.TemporaryDirectory() as directory:
        serve = [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", directory]
        ports = ["--port=0", "--http-port=0", "--no-grpc", "--no-admin"]
        with subprocess.Popen([*serve, *ports], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as broker:
            assert broker.stdout is not None
            ready = broker.stdout.readline()
            native, http = (re.search(rf"{one}=(\S+)", ready)[1] for one in ("native", "http"))  # type: ignore[index]
            with pydanube.connect_blocking(f"danube://{native}") as client:
                client.create_topic("/default/reference")
                client.create_subscription("/default/reference", "all")
                with client.producer("/default/reference") as producer:
                    producer.send(b"one")
            with urllib.request.urlopen(f"http://{http}/metrics") as answer:
                text = answer.read().decode()
            broker.terminate()
    says = dict(re.findall(r"# HELP (\S+) (.+)", text))
    kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", text))
    samples = re.findall(r"^(\w+?)(?:_bucket)?(\{.*\}) ", text, re.MULTILINE)
    labels = {name: sorted({*re.findall(r'(\w+)="', sample)}) for name, sample in samples}
    rows = [
        f"| `{name}` | {kinds.get(name, '')} | {', '.join(f'`{one}`' for one in labels.get(name, ()))} | {about} |"
        for name, about in sorted(says.items())
    ]
    return (
        "# Every metric\n\nAs `GET /metrics` of a broker tells them. [Metrics and traces](../metrics.md) explains them "
        "and has the alert rules.\n\n| metric | kind | labels | |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
