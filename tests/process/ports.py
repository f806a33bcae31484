"""Ports of this machine for servers that a test starts by number."""

from __future__ import annotations

import contextlib
import random
import socket
from itertools import islice


def is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def free_ports(count: int) -> list[int]:
    """Return ports below the range that outgoing connections are given, so that none of them takes one while its server
    is down."""
    candidates = random.sample(range(10_000, 32_000), 1_000)
    return list(islice(filter(is_free, candidates), count))


def free_port() -> int:
    return free_ports(1)[0]
