"""Every file, directory and module that a page names exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from served import ROOT

SOURCE = ROOT / "src" / "pydanube"
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    # Decisions keep the names of their day.
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "adr" not in page.parts),
]

TOPS = [*(one.name for one in SOURCE.iterdir() if one.is_dir()), "src", "tests", "docs", "examples", "benchmarks"]
PATH = re.compile(rf"(?<![\w./$~<-])((?:{'|'.join(TOPS)})/[\w./-]*|[\w/-]+\.py\b)(?![\w<*{{])")
"""A path below a package, below a directory of the repository, or the name of a Python file."""

MODULE = re.compile(r"(?<![\w./-])(?:pydanube|pyspark_danube)(?:\.[a-zA-Z_]\w*)+")

NOT_OURS = {
    "pyspark/daemon.py",  # of Spark
    "pydanube.object_stores",  # an entry point group
    "pydanube.storage.v1.ObjectStorage",  # a gRPC service
    "storage/collect",  # of the REST API
    "storage/slices/repair",
    "storage/uploads",
    "storage/verify",
    "shop.py",  # what the reader of the README writes
}


def named_paths(page: Path) -> set[str]:
    """The paths that a page names, but for the files that it tells its reader to write."""
    text = page.read_text()
    return {found.rstrip(".") for found in PATH.findall(text)} - {*re.findall(r"<!-- file: (\S+) -->", text)}


def exists(path: str, page: Path) -> bool:
    """A path may be counted from the repository, from the package or from the page, and a module may be named without
    its suffix; a file name without a directory may be anywhere."""
    tops = (ROOT, SOURCE, ROOT / "src", page.parent)
    if any((top / path).exists() or (top / f"{path}.py").exists() for top in tops):
        return True
    return "/" not in path and any(any(top.rglob(path)) for top in (ROOT / "src", ROOT / "tests", ROOT / "examples"))


def resolves(name: str) -> bool:
    """Whether `name` is a module, or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_a_page_names_exists(page: Path) -> None:
    missing = sorted({path for path in named_paths(page) - NOT_OURS if not exists(path, page)})
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_a_page_names_exists(page: Path) -> None:
    missing = sorted({name for name in {*MODULE.findall(page.read_text())} - NOT_OURS if not resolves(name)})
    assert not missing
