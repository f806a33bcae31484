"""The file system that the files of a table are in: the local one, or an object store as the format reaches it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.fs as pafs

from pydanube.model.errors import Refused

from .options import Format


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a table's directory."""

    path: str
    """Relative to the directory."""
    size: int
    modified_us: int
    """Microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class FileStore:
    """A directory of a table, local or in an object store. Picklable: the file system is opened where it is used."""

    root: str
    """A local path, or a URL."""
    format: Format
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def local(self) -> Path | None:
        return local_path(self.root)

    def url(self, path: str) -> str:
        """Return the full name of a file, as the table format writes it in its metadata."""
        return f"{self.root.rstrip('/')}/{path}"

    def relative(self, name: str) -> str:
        """Return the part of a file's full name after the directory; `name` itself if it is elsewhere."""
        return name.removeprefix(f"{self.root.rstrip('/')}/")

    def open(self) -> tuple[Any, str]:
        """Return the file system and the directory in it, with a slash at its end unless it is empty."""
        if (local := self.local) is not None:
            return pafs.LocalFileSystem(), f"{local}/"
        if self.format == "delta":
            from deltalake.fs import DeltaStorageHandler

            return pafs.PyFileSystem(DeltaStorageHandler(self.root, dict(self.settings))), ""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        scheme, netloc, path = PyArrowFileIO.parse_location(self.root)
        return PyArrowFileIO(dict(self.settings)).fs_by_scheme(scheme, netloc), f"{path.rstrip('/')}/"

    def list_files(self) -> Iterator[ListedFile]:
        """Yield every file of the directory, at any depth."""
        filesystem, base = self.open()
        for one in filesystem.get_file_info(pafs.FileSelector(base.rstrip("/"), allow_not_found=True, recursive=True)):
            if one.type == pafs.FileType.File:
                modified = (one.mtime_ns or 0) // 1_000
                yield ListedFile(one.path.removeprefix(base).lstrip("/"), one.size or 0, modified)

    def delete(self, path: str) -> None:
        filesystem, base = self.open()
        filesystem.delete_file(base + path)

    def sync(self, path: str) -> None:
        """Force a written file, and its name, to the disk. Object stores do so by themselves."""
        if (local := self.local) is not None:
            sync_file(local / path)


def sync_file(path: Path) -> None:
    """Force a file and the entry in its directory to the disk."""
    for one in (path, path.parent):
        descriptor = os.open(one, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def local_path(location: str) -> Path | None:
    """Return the local path that a path or a ``file:`` URL names; None for other URLs."""
    if "://" not in location and not location.startswith("file:"):
        return Path(location).absolute()
    if not location.startswith("file:"):
        return None
    return Path(unquote(urlparse(location).path))


def refuse_foreign_files(home: str) -> None:
    """Raise Refused if a directory that is no table yet has files in it; hidden ones are ours or Spark's."""
    local = local_path(home)
    if local is None or not local.exists():
        return
    if not local.is_dir():
        raise Refused(f"{home} is a file: name a directory for the table")
    found = sorted(one.name for one in local.iterdir() if not one.name.startswith(("_", ".")))
    if found:
        raise Refused(f"{home} is no table of this format and is not empty ({found[0]}): name another directory")
