"""Whether all brokers of a cluster see the same object store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pydanube.metadata.embedded import EmbeddedStore
from pydanube.model.errors import Full, Refused
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.objects.opening import open_store
from pydanube.storage.segments.store_ownership import OWNER_KEY
from pydanube.storage.segments.store_proof import OBJECTS, PROOFS, StoreProof, refuse_missing


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    opened = await EmbeddedStore.open(tmp_path / "metadata.db", ManualClock())
    yield opened
    await opened.close()


async def objects(path: Path) -> ObjectStore:
    return await open_store(path.as_uri())


async def written(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list(OBJECTS)]


async def test_brokers_on_one_store_find_what_the_others_wrote(metadata: EmbeddedStore, tmp_path: Path) -> None:
    for name in "abab":
        async with await objects(tmp_path / "shared") as store:
            await StoreProof(store, metadata, name).prove()
    async with await objects(tmp_path / "shared") as store:
        assert len(await written(store)) == 2
    assert [one.key for one in await metadata.list(PROOFS)] == [f"{PROOFS}a", f"{PROOFS}b"]


async def test_a_store_that_only_one_broker_sees_is_refused_by_name(metadata: EmbeddedStore, tmp_path: Path) -> None:
    async with await objects(tmp_path / "shared") as shared, await objects(tmp_path / "own") as own:
        await StoreProof(shared, metadata, "a").prove()
        with pytest.raises(Refused) as refused:
            await StoreProof(own, metadata, "b").prove()
        for part in (own.url, shared.url, "'a'", "storage.url"):
            assert part in refused.value.message
        assert await written(own) == []
    assert [one.key for one in await metadata.list(PROOFS)] == [f"{PROOFS}a"]


async def test_a_broker_that_was_given_another_store_is_refused(metadata: EmbeddedStore, tmp_path: Path) -> None:
    async with await objects(tmp_path / "former") as former, await objects(tmp_path / "other") as other:
        await StoreProof(former, metadata, "a").prove()
        with pytest.raises(Refused, match="'a'"):
            await StoreProof(other, metadata, "a").prove()


class Meanwhile:
    """A store of which another broker is faster, when this one writes."""

    def __init__(self, store: ObjectStore, first: StoreProof) -> None:
        self._store = store
        self._first = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, *given: Any, **options: Any) -> Any:
        await self._first.prove()
        return await self._store.put(*given, **options)


async def test_of_two_that_start_together_on_two_stores_one_is_refused(metadata: EmbeddedStore, tmp_path: Path) -> None:
    async with await objects(tmp_path / "one") as one, await objects(tmp_path / "two") as two:
        slower = Meanwhile(two, StoreProof(one, metadata, "a"))
        with pytest.raises(Refused, match="'a'"):
            await StoreProof(slower, metadata, "b").prove()  # type: ignore[arg-type]
        await StoreProof(one, metadata, "a").prove()
        assert await written(two) == [], "what the slower one wrote is removed"
    assert [entry.key for entry in await metadata.list(PROOFS)] == [f"{PROOFS}a"]


class FullMetadata:
    """Metadata that takes no writes."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, *_: Any) -> Any:
        raise Full("no space")


async def test_metadata_without_space_leaves_no_object(metadata: EmbeddedStore, tmp_path: Path) -> None:
    async with await objects(tmp_path / "shared") as store:
        with pytest.raises(Full):
            await StoreProof(store, FullMetadata(metadata), "a").prove()  # type: ignore[arg-type]
        assert await written(store) == []


async def test_a_check_writes_nothing(metadata: EmbeddedStore, tmp_path: Path) -> None:
    async with await objects(tmp_path / "shared") as shared, await objects(tmp_path / "own") as own:
        await StoreProof(shared, metadata, "b").check()
        assert await metadata.list(PROOFS) == [] and await written(shared) == []
        await StoreProof(shared, metadata, "a").prove()
        await StoreProof(shared, metadata, "b").check()
        with pytest.raises(Refused, match="sees another store"):
            await StoreProof(own, metadata, "b").check()


async def test_a_store_that_is_not_there_is_refused_once_a_broker_has_used_one(
    metadata: EmbeddedStore, tmp_path: Path
) -> None:
    await refuse_missing(metadata, "a", "file:///gone")
    async with await objects(tmp_path / "shared") as store:
        await StoreProof(store, metadata, "a").prove()
    with pytest.raises(Refused, match=r"file:///gone is not there, and broker 'a' has used it.*put the directory back"):
        await refuse_missing(metadata, "a", "file:///gone")
    with pytest.raises(Refused, match=r"file:///gone is not there, and broker 'a' of this cluster wrote"):
        await refuse_missing(metadata, "b", "file:///gone")


async def test_a_store_of_another_cluster_is_refused(metadata: EmbeddedStore, tmp_path: Path) -> None:
    async with await objects(tmp_path / "shared") as store:
        await StoreProof(store, metadata, "a").refuse_foreign("danube-here")
        await store.put(OWNER_KEY, b"danube-there")
        with pytest.raises(Refused, match=r"danube-there.*danube-here"):
            await StoreProof(store, metadata, "a").refuse_foreign("danube-here")
        await StoreProof(store, metadata, "a").refuse_foreign("danube-there")
