"""Maps keys to names of files and directories, and lists a tree of them in the order of keys.

Most keys are used as paths unchanged: `segments/0000000000000001/00000000/x.seg`. Where a file system cannot
distinguish two keys, or cannot store a name, the name is marked with `~`, which no key contains:

    last part with a dot        NAME          a file            last part without one     NAME~o
    other part without a dot    NAME          a directory       other part with one       NAME~d
    part of more than 200       its first 200 and `~`, a directory; the rest follows in it by the same rules

So `a` and `a/b` can both exist (`a~o` and `a/b~o`), and a name shows whether it is a file or a directory. Other names
are no objects and are not listed.

Invariants
    every key has exactly one path, and every path exactly one key
    `walk` yields keys in the order of their characters, and holds the names of only one directory per level in memory
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

PART_CHARACTERS_MAX: Final = 200
"""The most characters of a name before its mark; file systems allow 255."""

_NAME: Final = re.compile(r"([A-Za-z0-9\-_.=]+)(~[od]?)?")


class _Kind(IntEnum):
    FILE = 0
    DIRECTORY = 1
    CONTINUED = 2


class _Entry(NamedTuple):
    begins: str
    """The beginning that all keys below this name share; for a file, the whole key."""
    kind: _Kind
    path: str


class Found(NamedTuple):
    key: str
    stat: os.stat_result


def path_of(key: str) -> str:
    """Return the path of an object, relative to the root."""
    *directories, last = key.split("/")
    names = []
    for part in directories:
        names.extend(_split(part))
        names[-1] += "~d" if "." in names[-1] else ""
    names.extend(_split(last))
    names[-1] += "" if "." in names[-1] else "~o"
    return "/".join(names)


def _split(part: str) -> list[str]:
    names = []
    while len(part) > PART_CHARACTERS_MAX:
        names.append(part[:PART_CHARACTERS_MAX] + "~")
        part = part[PART_CHARACTERS_MAX:]
    return [*names, part]


def walk(root: str, prefix: str, after: str) -> Iterator[Found]:
    """Yield the objects in the order of their keys. Objects deleted meanwhile are left out."""
    return _walk(root, "", prefix, after)


def _walk(directory: str, begins: str, prefix: str, after: str) -> Iterator[Found]:
    entries = sorted(entry for entry in _entries(directory, begins) if _wanted(entry, prefix, after))
    at = 0
    while at < len(entries):
        entry = entries[at]
        following = at + 1
        if entry.kind is _Kind.CONTINUED:  # its keys are to be merged with those of all names with the same beginning
            while following < len(entries) and entries[following].begins.startswith(entry.begins):
                following += 1
        parts = [_below(one, prefix, after) for one in entries[at:following]]
        yield from parts[0] if len(parts) == 1 else heapq.merge(*parts)
        at = following


def _entries(directory: str, begins: str) -> Iterator[_Entry]:
    try:
        with os.scandir(directory) as names:
            for name in names:
                matched = _NAME.fullmatch(name.name)
                if matched is not None:
                    yield _entry(matched, begins, name.path)
    except (FileNotFoundError, NotADirectoryError):
        return


def _entry(matched: re.Match[str], begins: str, path: str) -> _Entry:
    text, mark = begins + matched[1], matched[2]
    if mark == "~":
        return _Entry(text, _Kind.CONTINUED, path)
    if mark == "~o" or (mark is None and "." in matched[1]):
        return _Entry(text, _Kind.FILE, path)
    return _Entry(text + "/", _Kind.DIRECTORY, path)


def _wanted(entry: _Entry, prefix: str, after: str) -> bool:
    if entry.kind is _Kind.FILE:
        return entry.begins.startswith(prefix) and entry.begins > after
    within = entry.begins.startswith(prefix) or prefix.startswith(entry.begins)
    return within and (entry.begins > after or after.startswith(entry.begins))


def _below(entry: _Entry, prefix: str, after: str) -> Iterable[Found]:
    if entry.kind is not _Kind.FILE:
        return _walk(entry.path, entry.begins, prefix, after)
    try:
        return (Found(entry.begins, Path(entry.path).stat()),)
    except FileNotFoundError:
        return ()
