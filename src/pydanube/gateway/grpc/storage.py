"""danube.StorageService: which segments of a topic are in object storage."""

from __future__ import annotations

from typing import Any, Final

from pydanube.core.access import Action
from pydanube.model.positions import Position

from .calls import Call
from .messages import API
from .resources import BrokerService
from .topics import known_address

_PAGE: Final = 1_000
_SEGMENTS_MAX: Final = 10_000
"""Segments in one reply, which has about a megabyte then; a caller continues with the last end_offset."""


class StorageService(BrokerService):
    """The storage service."""

    async def list_segment_descriptors(self, call: Call, request: Any) -> Any:
        address = await known_address(self._broker, request.topic)
        self._broker.addresses.check(call.principal, Action.READ, address)
        place = self._broker.addresses.get(call.principal, address)
        reply, offset = API["ListSegmentDescriptorsResponse"](), min(request.after_offset, 2**63 - 1)
        while offset >= 0 and len(reply.segments) < _SEGMENTS_MAX:
            page = await self._broker.storage.segments(
                call.principal, place.topic, place.partition, Position("offset", offset), _PAGE
            )
            offset = page.next_offset
            for one in page.segments:
                reply.segments.add(
                    segment_id=f"{one.object}#{one.section}",
                    start_offset=one.first_offset,
                    end_offset=one.end_offset - 1,
                    size=one.bytes,
                )
        return reply
