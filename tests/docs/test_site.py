"""What `make docs` builds the site from: every page has its place, and the reference is that of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from served import ROOT, environment_of

import pydanube
from pydanube.model.errors import tree

SITE = ROOT / "docs" / "site"


def placed() -> set[str]:
    """The pages that the navigation of the site names."""
    nav = (SITE / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    return set(re.findall(r"([\w./-]+\.md)$", nav, re.MULTILINE))


def test_every_page_has_a_place_on_the_site() -> None:
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md") if not page.name[:4].isdigit()}
    assert pages - {"index.md"} <= placed(), "add it to nav in docs/site/mkdocs.yml"


@pytest.mark.process
def test_pages_are_staged_with_links_that_lead_to_pages(tmp_path: Path) -> None:
    directory = tmp_path / "staged"
    command = [sys.executable, str(SITE / "prepare.py"), str(directory)]
    subprocess.run(command, check=True, env=environment_of(tmp_path), timeout=300)
    pages = directory / "pages"
    assert not {name for name in placed() if not (pages / name).exists()}
    for page in pages.rglob("*.md"):
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        targets = [
            *re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", text),
            *re.findall(r' (?:src|href)="(?!\w+:)([^"#]+)', text),
        ]
        for target in targets:
            assert (page.parent / target).exists(), f"{page.relative_to(pages)} links to {target}"
    assert "<!-- not run" not in "".join(page.read_text() for page in (pages / "tutorials").glob("*.md"))
    reference = {page.name: page.read_text() for page in (pages / "reference").glob("*.md")}
    api = "".join(text for name, text in reference.items() if name.startswith("api"))
    assert {name for name in pydanube.__all__ if f"\n## {name}\n" not in api} <= {"__version__", "fastapi", "testing"}
    assert all(f"`{kind.__name__}`" in reference["errors.md"] for kind in tree())
    assert "\n## danube topics create\n" in reference["commands.md"]
    assert "`/api/v1/topics/{namespace}/{topic}/messages`" in reference["rest.md"]
    assert "| `danube_broker_writable` | gauge |" in reference["metrics.md"]
