"""What strangers cost: measured by address, refused past a limit, and given back to those who show who they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_peer import connect
from http_peer import Peer
from test_authentication_listeners import Here, bearer, served

from pydanube.broker import ListenerMetrics
from pydanube.gateway import unproven_work
from pydanube.gateway.places import Places
from pydanube.gateway.unproven_work import BURST_S, SHARE, UnprovenWork
from pydanube.model.errors import Full, Unauthenticated
from pydanube.runtime.clock import ManualClock
from waiting import until

EVE, BOB = "192.0.2.1", "192.0.2.2"
GRPC_CALL = "danube_admin.TopicAdmin/ListNamespaceTopics"


class Processor:
    """Counts the time that a test says was used: so many seconds whenever it is asked."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s
        self.used_s = 0.0

    def __call__(self) -> float:
        self.used_s += self.step_s
        return self.used_s


def work_of(clock: ManualClock, processor: Callable[[], float], is_counted: bool = True) -> UnprovenWork:
    return UnprovenWork(clock, lambda: is_counted, processor)


def test_an_address_that_costs_too_much_is_refused_until_time_has_passed() -> None:
    clock, processor = ManualClock(), Processor(0.5)
    work = work_of(clock, processor)
    client, rounds = work.client(EVE), 0
    while not client.refusal():
        with client.measured():
            rounds += 1
    assert rounds == BURST_S / 0.5 + 1
    assert f"address {EVE}" in work.client(EVE).refusal() and "wait 5 s" in client.refusal()
    assert not work.client(BOB).refusal()
    clock.advance(0.5 / SHARE)
    assert not client.refusal()


def test_who_shows_who_it_is_gets_back_what_it_cost() -> None:
    work = work_of(ManualClock(), Processor(0.5))
    stranger = work.client(EVE, 1.0)
    for _ in range(20):
        client = work.client(EVE)
        with client.measured():
            pass
        client.proved()
        with client.measured():
            pass
    assert work.cost(EVE) == 1.0 and not client.refusal()
    client.begin()
    with client.measured():
        pass
    assert work.cost(EVE) == 1.5
    stranger.proved()
    assert work.cost(EVE) == 0.5


def test_clients_whose_handshakes_were_let_begin_may_show_who_they_are() -> None:
    work = work_of(ManualClock(), Processor(0.0015))
    places = Places("native", 100, 100, ListenerMetrics(), work)
    clients = []
    for _ in range(20):
        assert places.may_begin(EVE)
    for _ in range(20):  # they end together, and have cost more than an address may take at once
        work.add(EVE, 0.2)
    assert not places.may_begin(EVE) and places.enter(EVE)
    for _ in range(20):
        assert places.enter(EVE, 0.2) == ""
        clients.append(places.client(EVE, 0.2))
    stranger, *honest = clients
    while not stranger.refusal():
        with stranger.measured():
            pass
    for client in honest:
        with client.measured():
            assert not client.refusal()
        client.proved()
    assert places.may_begin(EVE)


async def test_only_the_steps_of_a_coroutine_are_measured() -> None:
    processor, error = Processor(), ValueError("wrong")
    work = work_of(ManualClock(), processor)

    async def check(is_right: bool) -> str:
        processor.used_s += 0.25
        await asyncio.sleep(0)
        processor.used_s += 0.25
        if not is_right:
            raise error
        return "eve"

    async def other() -> None:
        processor.used_s += 100

    client = work.client(EVE)
    found, _ = await asyncio.gather(client.run(check(True)), other())
    assert (found, work.cost(EVE)) == ("eve", 0.5)
    with pytest.raises(ValueError, match="wrong"):
        await client.run(check(False))
    assert work.cost(EVE) == 1.0
    waiting = asyncio.ensure_future(client.run(asyncio.sleep(3600)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unproven_work, "ADDRESSES_MAX", 10)
    work = work_of(ManualClock(), Processor())
    for number in range(50):
        work.client(f"192.0.2.{number}", 1.0)
    assert len(work._of) == 10
    open_to_all = work_of(ManualClock(), Processor(), is_counted=False)
    open_to_all.client(EVE, 100.0)
    assert len(open_to_all._of) == 0 and not open_to_all.client(EVE).refusal()


# -- the listeners of a broker -----------------------------------------------------------------------------------------


def costly(here: Here, step_s: float) -> UnprovenWork:
    """Make every step that is measured cost so much."""
    assert here.server._native is not None
    work = here.server._native._resources.door.work
    work.processor_time = Processor(step_s)
    return work


async def test_callers_that_prove_themselves_may_cost_what_they_like(tmp_path: Path) -> None:
    async with served(tmp_path) as here:
        work = costly(here, 0.5)
        for _ in range(10):
            assert (await here.get("/api/v1/namespaces", **bearer(here.admin))).status == 200
            await (await here.connection(here.admin)).close()
            host, port = here.server.admin_address
            async with connect(f"{host}:{port}") as peer:
                metadata = (("authorization", f"Bearer {here.admin}"),)
                await peer.call(GRPC_CALL, metadata, name="default")
        assert work.cost("127.0.0.1") < 0.5


async def test_strangers_of_an_address_that_cost_too_much_are_refused_on_every_listener(tmp_path: Path) -> None:
    async with served(tmp_path) as here:
        work = costly(here, 0.3)
        async with await Peer.connect(here) as known, await Peer.connect(here) as stranger:  # type: ignore[arg-type]
            assert (await known.request("GET", "/api/v1/namespaces", **bearer(here.admin))).status == 200
            statuses = []
            for _ in range(8):
                answer = await stranger.request("GET", "/api/v1/namespaces")  # no credentials are no failure
                statuses.append(answer.status)
                if answer.headers.get("connection") == "close":
                    break
            assert statuses == [401] * len(statuses) and len(statuses) < 8
            assert await stranger.closed() == b""
            work.add("127.0.0.1", 100.0)
            async with await Peer.connect(here) as other:  # type: ignore[arg-type]
                answer = await other.answer()
                assert answer.status == 503 and "without showing who they are" in answer.json()["detail"]
            with pytest.raises(Full, match="without showing who they are"):
                await here.connection(here.admin)
            host, port = here.server.grpc_address
            reader, writer = await asyncio.open_connection(host, port)
            assert await reader.read() == b""
            writer.close()
            assert (await known.request("GET", "/api/v1/namespaces", **bearer(here.admin))).status == 200
        work.add("127.0.0.1", -200.0)
        await (await here.connection(here.admin)).close()
        with pytest.raises(Unauthenticated):
            await here.connection("x")


async def test_a_grpc_connection_ends_when_its_strangers_cost_too_much(tmp_path: Path) -> None:
    async with served(tmp_path) as here:
        work = costly(here, 0.0)
        host, port = here.server.admin_address
        async with connect(f"{host}:{port}") as peer:
            with pytest.raises(grpc.aio.AioRpcError, match="missing or not accepted"):
                await peer.call(GRPC_CALL, name="default")
            work.add("127.0.0.1", 100.0)
            with pytest.raises(grpc.aio.AioRpcError, match="without showing who they are"):
                await peer.call(GRPC_CALL, name="default")
            await until(lambda: not here.server._grpc._fronts[1].clients)  # type: ignore[union-attr]
