"""Reads of a real etcd that are asked for at the same time. Run by `make test-cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from etcd_cluster import etcd_cluster, missing_etcd, programs

from pydanube.metadata.etcd.place import EtcdPlace, parse_members
from pydanube.metadata.etcd.rpc import TXN
from pydanube.metadata.etcd.store import JOINED_MAX, EtcdStore
from pydanube.metadata.store import Put, list_all
from pydanube.model.limits import METADATA_PAGE_BYTES_MAX
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.descriptor_sets import ServiceMethod

pytestmark = [pytest.mark.etcd, pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there")]


@pytest.fixture(params=programs())
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EtcdStore]:
    with etcd_cluster(tmp_path / "etcd", 1, program=request.param, noise=True) as running:
        members, prefix = parse_members(running.url())
        async with await EtcdStore.open(EtcdPlace(members, prefix), SystemClock()) as opened:
            yield opened


def count_requests(store: EtcdStore) -> list[ServiceMethod]:
    """Return a list to which every request is added from now on."""
    sent: list[ServiceMethod] = []
    call = store._client.call

    async def counted(method: ServiceMethod, request: Any, *, reads: bool = False) -> Any:
        sent.append(method)
        return await call(method, request, reads=reads)

    store._client.call = counted  # type: ignore[method-assign]
    return sent


async def test_each_of_many_reads_at_once_gets_its_own_answer(store: EtcdStore) -> None:
    for number in range(50):
        await store.transact([], [Put(f"/k/{number:02d}/{one}", b"%d" % number) for one in range(number % 3)])
    sent = count_requests(store)
    gets = [store.get(f"/k/{number:02d}/0") for number in range(50)]
    lists = [store.list(f"/k/{number:02d}/") for number in range(50)]
    found = await asyncio.gather(*gets, *lists)
    for number in range(50):
        one, some = found[number], found[50 + number]
        assert isinstance(some, list)
        assert [entry.key for entry in some] == [f"/k/{number:02d}/{one}" for one in range(number % 3)]
        assert one == (some[0] if some else None)
        assert all(entry.value == b"%d" % number for entry in some)
    assert sent == [TXN] * -(-100 // JOINED_MAX)


async def test_listings_that_do_not_fit_into_one_reply_are_read_alone(store: EtcdStore) -> None:
    value = b"x" * (METADATA_PAGE_BYTES_MAX // 2)
    for number in range(40):
        await store.transact([], [Put(f"/large/{number:02d}", value)])

    async def keys() -> list[str]:
        return [one.key async for one in list_all(store, "/large/")]

    for found in await asyncio.gather(*(keys() for _ in range(JOINED_MAX))):
        assert found == [f"/large/{number:02d}" for number in range(40)]
