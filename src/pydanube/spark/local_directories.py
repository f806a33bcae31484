"""Finds out before Spark starts whether a local directory can be written."""

from __future__ import annotations

import os
from pathlib import Path


def not_a_directory(path: str) -> str:
    """Return why a local path cannot be a directory that is written to; empty: it can, or it is a URL."""
    if "://" in path or path.startswith("file:"):
        return ""
    found = Path(path)
    try:
        if found.exists() and not found.is_dir():
            return f"is a file, and must be a directory: {path}"
        while not found.exists() and found != found.parent:
            found = found.parent
    except OSError as error:  # such as a name that is too long
        return f"cannot be opened: {(error.strerror or str(error)).lower()}: {path}"
    if not found.is_dir():
        return f"lies below a file: {found}"
    return "" if os.access(found, os.W_OK | os.X_OK) else f"cannot be written: there is no permission for {found}"
