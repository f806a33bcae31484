"""Writes the table of docs/security.md: `python tests/security/operations_table.py` prints it."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent.parent / one) for one in ("broker", "metadata", "security")]

from listener_operations import GRPC, NATIVE, REST

from operations import ALSO


def operations_table() -> str:
    """Return what operations need, as a table in Markdown: one line for all that need the same."""
    rows: dict[str, dict[str, list[str]]] = {}
    for sent in NATIVE:
        _add(rows, sent.needs, "native", type(sent.request).__name__ + ("*" if sent.request.for_brokers else ""))
    for name, sent in REST.items():
        _add(rows, sent.needs, "REST", name)
    for name, sent in GRPC.items():
        _add(rows, sent.needs, "gRPC", name.rpartition("/")[2])
    lines = ["| needs | native | REST | gRPC |", "|---|---|---|---|"]
    for needs, found in sorted(rows.items()):
        cells = [", ".join(sorted(set(found.get(kind, ())))) for kind in ("native", "REST", "gRPC")]
        lines.append(f"| {_in_words(needs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _add(rows: dict[str, dict[str, list[str]]], needs: str, listener: str, name: str) -> None:
    rows.setdefault(needs, {}).setdefault(listener, []).append(name)


def _in_words(needs: str) -> str:
    if not needs:
        return "nothing: shows what the caller may see"
    words = ", and ".join(needs.split(" + "))
    return f"{words} ({ALSO[needs]})" if needs in ALSO else words


if __name__ == "__main__":
    print(operations_table())
