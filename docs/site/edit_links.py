"""A hook of mkdocs: "edit this page" leads to the file of the repository that a page was made from, or to nothing."""

from __future__ import annotations

from typing import Any


def on_page_context(context: Any, *, page: Any, config: Any, nav: Any) -> Any:
    """Turn `edit_path`, which prepare.py writes, into the address; a page that was made from the code has none."""
    path = page.meta.get("edit_path")
    page.edit_url = f"{config.repo_url.rstrip('/')}/edit/main/{path}" if path and config.repo_url else None
    return context
