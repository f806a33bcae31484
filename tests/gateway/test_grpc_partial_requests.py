"""Requests that arrive in part: their memory is bounded, and other clients are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from grpc_peer import GrpcListener, connect, open_listener
from http2_peer import WINDOW, PartialRequest

from pydanube.gateway.grpc import request_intake
from pydanube.gateway.grpc.request_intake import AT_ONCE_MAX, DROPPED_MAX, RETURN_INTERVAL_S, SLOW_MAX
from pydanube.model.limits import MIB

PATH = "/danube.ProducerService/SendMessage"
HEALTH_CHECK = "grpc.health.v1.Health/Check"
SIZE = 1 * MIB
SERVING = 1


@asynccontextmanager
async def stalled(there: GrpcListener, count: int) -> AsyncIterator[list[PartialRequest]]:
    """Clients that have sent all of their request that they may, but for the last byte."""
    peers = [await PartialRequest.open(there.data, PATH, SIZE) for _ in range(count)]
    try:
        yield peers
    finally:
        for peer in peers:
            await peer.close()


async def test_few_clients_that_send_a_part_of_a_request_disturb_nobody():
    async with open_listener() as there, connect(there.data) as working:
        intake = there.server._limits.intake
        async with stalled(there, AT_ONCE_MAX + 4) as peers:
            await there.until(lambda: all(peer.sent == SIZE + 4 for peer in peers))
            assert len(intake._arriving) + len(intake._slow) == len(peers)
            assert (await working.call(HEALTH_CHECK)).status == SERVING
            assert not any(peer.answer for peer in peers)
        await there.until(lambda: not intake._arriving and not intake._slow and not intake._turns)


async def test_many_such_clients_are_received_a_few_at_a_time_and_the_oldest_are_refused(monkeypatch):
    monkeypatch.setattr(request_intake, "REQUEST_S_MAX", 2.0)
    async with open_listener() as there, connect(there.data) as working:
        intake = there.server._limits.intake
        async with stalled(there, AT_ONCE_MAX + SLOW_MAX + 10) as peers:
            await there.until(lambda: len(intake._slow) == SLOW_MAX and len(intake._waiting) == 10)
            await there.until(lambda: sum(peer.sent == SIZE + 4 for peer in peers) >= AT_ONCE_MAX + SLOW_MAX)
            unread = [peer.sent for peer in peers if peer.sent < SIZE + 4]
            assert all(sent <= WINDOW for sent in unread), "gRPC takes more than a window of what nobody asked for"
            call = asyncio.ensure_future(working.call(HEALTH_CHECK))
            assert (await call).status == SERVING  # when one of those before it was refused
            refused = [peer.answer for peer in peers if peer.answer]
            assert refused and all(b"grpc-status\x018" in answer for answer in refused)
            assert len(intake._arriving) <= AT_ONCE_MAX and len(intake._slow) <= SLOW_MAX
        await there.until(lambda: not intake._arriving and not intake._slow and not intake._turns)


async def test_a_new_call_does_not_wait_for_all_such_clients_before_it(monkeypatch):
    monkeypatch.setattr(request_intake, "REQUEST_S_MAX", 2.0)
    received_max = AT_ONCE_MAX + SLOW_MAX
    async with open_listener() as there, connect(there.data) as working:
        intake = there.server._limits.intake
        async with stalled(there, 3 * received_max) as peers:
            await there.until(lambda: len(intake._slow) == SLOW_MAX and len(intake._waiting) >= received_max)
            assert (await working.call(HEALTH_CHECK)).status == SERVING
            assert sum(bool(peer.answer) for peer in peers) <= received_max, "it waited for all that came before it"


async def test_memory_is_given_back_after_requests_that_were_never_complete():
    returned = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with open_listener() as there:
        intake = there.server._limits.intake
        intake._return_memory = lambda: loop.call_soon_threadsafe(returned.set)
        intake._returned_at -= 2 * RETURN_INTERVAL_S
        async with stalled(there, AT_ONCE_MAX + SLOW_MAX) as peers:
            await there.until(lambda: all(peer.sent == SIZE + 4 for peer in peers))
            await there.until(lambda: len(intake._slow) == SLOW_MAX)
            assert not returned.is_set()
        await there.until(returned.is_set)
        assert intake._dropped < DROPPED_MAX


@pytest.mark.parametrize("announced", [2**32 - 1, 100 * MIB])
async def test_a_request_that_is_announced_too_large_is_refused_at_once(announced):
    async with open_listener() as there:
        peer = await PartialRequest.open(there.data, PATH, announced)
        await there.until(lambda: bool(peer.answer))
        assert peer.sent < 2 * MIB
        assert b"grpc-status\x018" in peer.answer
        await peer.close()


async def test_a_call_without_a_request_is_invalid():
    async with open_listener() as there, connect(there.data) as peer:
        call = peer.channel.stream_unary(f"/{HEALTH_CHECK}")(iter(()), timeout=60)
        assert (await call.code()).name == "INVALID_ARGUMENT"
        assert "no request" in await call.details()
