"""How many files and sockets this process may have open, and how they are shared out.

Connections get what the files of the log, the metadata and the object store do not need: a broker that runs out of
descriptors must refuse a connection, and never fail to write its log.
"""

from __future__ import annotations

import os
import sys
from typing import Final, NamedTuple

if sys.platform != "win32":
    import resource


KEPT: Final = 256
"""Never given to connections where there are many descriptors."""

LOG_FILES_MAX: Final = 64
LOG_FILES_MIN: Final = 4
"""Closed files of the log that are kept open for reading."""

FILES_OPENED_LATER: Final = 24
"""Besides those: new files of the log, threads that read it, and two files for each thread of an object store."""

_ASSUMED_OPEN: Final = 32
"""Where the system does not tell what is open."""


class ConnectionLimits(NamedTuple):
    """How connections are let in."""

    connections: int
    at_once: int
    """Accepted in one turn of the loop, and told why they are refused at the same time."""


def log_files(limit: int) -> int:
    """How many closed files of the log may stay open for reading, of so many descriptors in all."""
    return max(LOG_FILES_MIN, min(LOG_FILES_MAX, limit // 8))


def plan_connections(limit: int, in_use: int) -> ConnectionLimits:
    """How many connections fit, when so many descriptors are there in all and so many are in use before the first."""
    kept = max(in_use + log_files(limit) + FILES_OPENED_LATER, min(KEPT, limit // 4))
    at_once = max(2, min(64, kept // 16))
    # Those of this turn and the last two may be open although there is no place for them, and those that are told why.
    return ConnectionLimits(max(1, limit - kept - 4 * at_once), at_once)


def open_descriptors() -> int:
    """How many files and sockets this process has open now."""
    try:
        return len(os.listdir("/dev/fd")) - 1  # noqa: PTH208 - one of them is that of the listing itself
    except OSError:
        return _ASSUMED_OPEN


def raise_descriptor_limit(wanted: int) -> int:
    """Let this process have so many files and sockets, as far as the system permits; returns how many it may have."""
    if sys.platform == "win32":  # sockets are no files there
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < reachable:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
        soft = reachable
    return wanted if soft == resource.RLIM_INFINITY else soft
