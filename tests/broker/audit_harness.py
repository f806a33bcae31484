"""A sink of audit events that keeps them in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

from pydanube.broker import Broker
from pydanube.broker.security.audit_operations import Origin
from pydanube.core.access import Action
from pydanube.model.audit import AuditEvent
from pydanube.model.errors import Denied

MARKER = "marker"


class ListSink:
    """Keeps events. A broker that writes to it must be started."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []
        self.is_closed = False
        self._written = asyncio.Event()
        self._markers = count(1)

    async def write(self, events: Sequence[AuditEvent]) -> None:
        self.events += events
        self._written.set()

    async def close(self) -> None:
        self.is_closed = True

    async def take(self, broker: Broker, sessions: bool = False) -> list[AuditEvent]:
        """Return the events since the last call, once all that the broker has recorded are here."""
        marker = f"{MARKER}-{next(self._markers)}"
        broker.audit.refuse(Origin(MARKER, "", marker), marker, Action.READ, "", Denied(""))
        async with asyncio.timeout(60):
            while not self.events or self.events[-1].operation != marker:
                self._written.clear()
                await self._written.wait()
        found, self.events = self.events[:-1], []
        return [one for one in found if sessions or one.kind != "session"]
