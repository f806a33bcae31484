"""The kinds of files that a broker stores, told apart by their paths, and what damage to each kind may cause.

A file that no pattern matches fails the run: a new kind of stored file is added here, with what may happen when it is
damaged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kind:
    """One kind of stored file."""

    name: str
    pattern: str
    rebuilt: bool = False
    """The broker can do without the file: any damage to it must leave everything served, by a start that succeeds."""
    unit: str = ""
    """Files of one unit belong together and are backed up together."""
    kept: bool = False
    """A start leaves the file as it is, so a copy of it can be put back even after the broker has run."""
    history: bool = False
    """A restore from the object store reads it."""
    weight: int = 1
    """How often it is damaged, compared with the others."""


KINDS = (
    Kind("identity", r"IDENTITY"),
    Kind("metadata revision", r"METADATA_REVISION"),
    Kind("lock", r"(wal/)?LOCK|objects/~lock|objects/~tmp/[^/]+\.lock", rebuilt=True),
    Kind("metadata", r"metadata\.db", unit="metadata", weight=4),
    Kind("metadata wal", r"metadata\.db-wal", unit="metadata", weight=4),
    Kind("metadata shm", r"metadata\.db-shm", rebuilt=True, unit="metadata"),
    Kind("metadata journal", r"metadata\.journal(\.\d+)?", unit="metadata", weight=4),
    Kind("metadata set aside", r"metadata\.db\.damaged-\d+(-wal|-shm)?", rebuilt=True),
    Kind("log manifest", r"wal/MANIFEST"),
    Kind("log durable mark", r"wal/DURABLE", weight=2),
    Kind("log file", r"wal/wal-\d{10}\.log", kept=True, weight=3),
    Kind("open log file", r"(?!)", kept=True, weight=4),  # by name a log file; told apart by its number, see `classify`
    Kind("log index", r"wal/wal-\d{10}\.idx", rebuilt=True),
    Kind("spare log file", r"wal/spare-\d{10}\.log", rebuilt=True),
    Kind("unfinished", r".*\.tmp|metadata\.(db|journal)\.new(-wal|-shm|-journal)?|objects/~tmp/.*", rebuilt=True),
    Kind("segment", r"objects/segments/.*\.seg(~o)?", kept=True, history=True, weight=3),
    Kind("manifest", r"objects/manifests/.*\.manifest(~o)?", kept=True, history=True),
    Kind("slice", r"objects/slices/[0-9a-f]{16}/[0-9a-f]{16}(~o)?", kept=True, weight=2),
    Kind("check of the store", r"objects/slice-check/.*", rebuilt=True),
    Kind("stage", r"objects/stages/.*", kept=True),
    Kind("claim", r"objects/danube-cluster(~o)?", kept=True, history=True),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def classify(directory: Path) -> dict[str, Kind]:
    """Return the kind of every file below a data directory, by its path relative to the directory.

    Raises AssertionError for a file of an unknown kind.
    """
    found: dict[str, Kind] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            name = path.relative_to(directory).as_posix()
            kind = next((one for one in KINDS if re.fullmatch(one.pattern, name)), None)
            assert kind is not None, f"{name} is a stored file of no known kind: add it to tests/damage/stored_files.py"
            found[name] = kind
    logs = [name for name, kind in found.items() if kind.name == "log file"]
    if logs:
        found[max(logs)] = BY_NAME["open log file"]
    return found
