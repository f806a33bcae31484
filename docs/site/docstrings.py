"""An extension of griffe: the parameters that docstrings list as `name   what it is` become lists of the site."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

ENTRY = re.compile(r"^(\w[\w, ]*?) {2,}(\S.*)$")


class Lists(Extension):
    """Rewrites the docstring of each object."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None and obj.docstring.value:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    lines: list[str] = []
    in_entry = False
    for line in text.splitlines():
        if entry := ENTRY.match(line):
            if not in_entry:
                lines.append("")
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            lines.append(f"- {names}: {entry[2]}")
            in_entry = True
        elif in_entry and line.startswith("   ") and line.strip():
            lines[-1] += f" {line.strip()}"
        else:
            if in_entry:
                lines.append("")
            in_entry = False
            lines.append(line)
    return "\n".join(lines)
