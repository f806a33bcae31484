"""How many files and sockets this process may have open."""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import resource


def make_descriptors(wanted: int) -> int:
    """Let this process have so many files and sockets, as far as the system permits; returns how many it may have."""
    if sys.platform == "win32":  # sockets are no files there
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < reachable:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
        soft = reachable
    return wanted if soft == resource.RLIM_INFINITY else soft
