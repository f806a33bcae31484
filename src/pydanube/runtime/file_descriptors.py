"""How many files and sockets this process may have open, and how many of them connections may use.

Connections get what the files of the log, the metadata and the object store do not need: a broker that runs out of
file descriptors must refuse connections, and never fail to write its log.
"""

from __future__ import annotations

import os
import sys
from typing import Final, NamedTuple

if sys.platform != "win32":
    import resource


KEPT: Final = 256
"""Descriptors that connections never get, if the limit is high enough."""

GRPC_DESCRIPTORS: Final = 3
"""What a gRPC connection takes: itself, and both ends of the socket that it is passed on by."""

LOG_FILES_MAX: Final = 64
LOG_FILES_MIN: Final = 4
"""How many closed files of the log are kept open for reading."""

FILES_OPENED_LATER: Final = 24
"""Files opened after the start: new log files, files of threads that read the log, two for each object store thread."""

_ASSUMED_OPEN: Final = 32
"""Assumed when the system cannot tell how many descriptors are open."""


class ConnectionLimits(NamedTuple):
    """Limits for accepting connections."""

    connections: int
    at_once: int
    """How many are accepted in one turn of the loop, and how many may be refused with a reason at the same time."""


def log_files(limit: int) -> int:
    """Return how many closed files of the log may stay open for reading, with `limit` descriptors in total."""
    return max(LOG_FILES_MIN, min(LOG_FILES_MAX, limit // 8))


def plan_connections(limit: int, in_use: int) -> ConnectionLimits:
    """Return how many connections fit, with `limit` descriptors in total and `in_use` before the first connection."""
    kept = max(in_use + log_files(limit) + FILES_OPENED_LATER, min(KEPT, limit // 4))
    at_once = max(2, min(64, kept // 16))
    # Beyond the limit, the connections of this turn and of the last two may be open, and those being refused.
    return ConnectionLimits(max(1, limit - kept - 4 * at_once), at_once)


def plan_http_connections(limit: int, wanted: int, others: int) -> ConnectionLimits:
    """Return the limits of the HTTP listener: `wanted` connections if `limit` descriptors are enough for them and for
    `others`, few otherwise, because most clients are native."""
    if limit >= wanted + others + KEPT:
        return ConnectionLimits(wanted, 64)
    connections = max(1, min(wanted, limit // 32))
    return ConnectionLimits(connections, max(1, min(64, connections // 8)))


def plan_grpc_connections(limit: int, wanted: int, others: int) -> int:
    """Return how many connections the gRPC listeners get: `wanted` if `limit` descriptors are enough for them and for
    `others`, otherwise a part of them."""
    each = GRPC_DESCRIPTORS
    return wanted if limit >= each * wanted + others + KEPT else max(2, min(wanted, limit // (8 * each)))


def open_descriptors() -> int:
    """Return how many files and sockets this process has open."""
    try:
        return len(os.listdir("/dev/fd")) - 1  # noqa: PTH208 - one of them is the listing itself
    except OSError:
        return _ASSUMED_OPEN


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the limit of open files to `wanted`, as far as the system permits; return how many may be open."""
    if sys.platform == "win32":  # sockets are not counted as files there
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < reachable:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
        soft = reachable
    return wanted if soft == resource.RLIM_INFINITY else soft
