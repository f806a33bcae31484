"""Slows down an address that shows wrong credentials again and again.

```
 failures of an address:   1  2  3 | 4      5      6  ...   failures_max |
 its answers:              at once | later, twice as late each time      | Full, for block_s
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydanube.model.errors import Full
from pydanube.runtime.cache import Cache
from pydanube.runtime.clock import Clock

FREE_FAILURES: Final = 3
FIRST_DELAY_S: Final = 0.1
DELAY_S_MAX: Final = 2.0
"""Shorter than every time limit of a handshake: the caller gets its answer."""

FORGET_S: Final = 60.0
"""An address that did not fail for so long begins anew."""

ADDRESSES_MAX: Final = 10_000
"""Addresses that are remembered; the one that was asked about longest ago is forgotten first."""


@dataclass(slots=True)
class _Failures:
    count: int
    last_at: float
    refused_until: float = 0.0


class Failures:
    """The failures of each address."""

    def __init__(self, clock: Clock, failures_max: int, block_s: float) -> None:
        self._clock = clock
        self._failures_max = failures_max
        self._block_s = block_s
        self._of: Cache[str, _Failures] = Cache(ADDRESSES_MAX)

    def __len__(self) -> int:
        return len(self._of)

    def check(self, address: str) -> None:
        """Raise Full if the address has failed too often."""
        found = self._of.get(address)
        if found is not None and self._clock.monotonic() < found.refused_until:
            raise Full(f"address {address} has shown wrong credentials too often: wait {self._block_s:g} s")

    def add(self, address: str) -> float:
        """Count a failure; return for how many seconds its answer is to be held back."""
        now = self._clock.monotonic()
        found = self._of.get(address)
        if found is None or now - found.last_at > FORGET_S:
            found = _Failures(0, now)
        found.count += 1
        found.last_at = now
        if found.count >= self._failures_max:
            found.refused_until = now + self._block_s
            found.count = FREE_FAILURES  # after that time it is answered slowly, not as if it had never failed
        self._of.put(address, found)
        late = found.count - FREE_FAILURES
        return min(DELAY_S_MAX, FIRST_DELAY_S * 2 ** min(late - 1, 10)) if late > 0 else 0.0
