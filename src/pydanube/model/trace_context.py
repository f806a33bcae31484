"""Trace context of messages: the attributes `traceparent` and `tracestate`, as the W3C recommendation writes them.

```
 traceparent   00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
               version, trace id, id of the parent span, flags (1: sampled)
```
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1


class TraceContext(NamedTuple):
    """The span that a message was published in."""

    trace_id: int
    span_id: int
    flags: int = _SAMPLED
    state: str = ""
    """The value of `tracestate`, which belongs to the tracing systems and is passed on as it is."""

    @classmethod
    def parse(cls, traceparent: str, tracestate: str = "") -> Self | None:
        """Return the context; None if the text is none, as it may come from any producer."""
        found = _TRACEPARENT.fullmatch(traceparent)
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(int(trace_id, 16), int(span_id, 16), int(flags, 16), tracestate)

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & _SAMPLED)

    def attributes(self) -> dict[str, str]:
        """Return the attributes of a message with this context."""
        found = {TRACEPARENT: f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"}
        return {**found, TRACESTATE: self.state} if self.state else found
