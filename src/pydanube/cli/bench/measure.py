"""Percentiles of samples, and processor time and memory of a process as the kernel reports them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles in milliseconds."""

    p50: float
    p99: float
    p999: float
    max: float
    samples: int


def percentiles(nanoseconds: Sequence[int] | npt.NDArray[np.int64]) -> Percentiles | None:
    """Return the percentiles of the samples; None if there are none."""
    taken = np.asarray(nanoseconds, dtype=np.float64) / 1e6
    if taken.size == 0:
        return None
    p50, p99, p999 = np.percentile(taken, [50, 99, 99.9])
    return Percentiles(float(p50), float(p99), float(p999), float(taken.max()), int(taken.size))


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process so far; 0 if the kernel does not report it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class MachineMeter:
    """Measures how many cores other programs kept busy since its creation."""

    def __init__(self) -> None:
        self._busy, self._begin = _busy_seconds(), time.perf_counter()

    def others(self, ours_seconds: float) -> float | None:
        """Return the average number of cores; None if the kernel does not report it."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        return max(0.0, busy - self._busy - ours_seconds) / (time.perf_counter() - self._begin)


def _busy_seconds() -> float | None:
    """Return the busy seconds of all cores since the machine started, including steal time."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return None
    user, nice, system, _idle, _waiting, hard, soft, stolen = map(int, first.split()[1:9])
    return (user + nice + system + hard + soft + stolen) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> tuple[int, int] | None:
    """Return the resident bytes of a process, now and at the peak; None if the kernel does not report them."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    now = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return (int(now[1]) << 10, int(peak[1]) << 10) if now and peak else None
