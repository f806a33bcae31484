"""Which broker of which cluster a data directory is, before anything of it is opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from pydanube.broker.cluster.joining import METADATA_PART, Joining, join_cluster
from pydanube.broker.cluster.node_records import FOUNDER_LOG_KEY, IDENTITY_KEY, NodeRecord, node_key, pack, session_key
from pydanube.codec.wal import NodeIdentity
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import Put
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import Refused
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.disk import OsDisk
from pydanube.server.server import Server
from pydanube.settings import Settings
from pydanube.storage.directory import DataDirectory

DISK = OsDisk()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    opened = await EmbeddedStore.open(tmp_path / "metadata.db", ManualClock())
    yield opened
    await opened.close()


async def accept(_joining: Joining) -> None:
    """Accept every object store and log."""


async def join(store: EmbeddedStore, path: Path, name: str) -> Joining:
    return await join_cluster(store, Path("the-metadata"), DISK, path, name, accept)


async def start(store: EmbeddedStore, path: Path, name: str) -> Joining:
    """Join, and make the data directory and the record as a start does."""
    joining = await join(store, path, name)
    joining.open_directory(DISK, path).close()
    await store.transact([], [Put(node_key(name), pack(NodeRecord(joining.log)))])
    return joining


async def refusal(store: EmbeddedStore, path: Path, name: str) -> str:
    """Return why the broker is refused, after checking that nothing has changed."""
    before = [(one.key, one.value) for one in await store.list("")]
    files = sorted(path.rglob("*")) if path.exists() else None  # noqa: ASYNC240 - a small directory
    with pytest.raises(Refused) as refused:
        await join(store, path, name)
    assert [(one.key, one.value) for one in await store.list("")] == before
    assert (sorted(path.rglob("*")) if path.exists() else None) == files  # noqa: ASYNC240
    return refused.value.message


async def test_the_first_broker_founds_the_cluster_and_the_next_joins_it(store: EmbeddedStore, tmp_path: Path) -> None:
    first = await start(store, tmp_path / "a", "a")
    second = await start(store, tmp_path / "b", "b")
    assert first.founder == second.founder
    assert first.log == first.founder.incarnation != second.log
    found = DataDirectory.peek(DISK, tmp_path / "b")
    assert found is not None and found[0] == NodeIdentity(first.founder.cluster, "b", second.log)
    assert await start(store, tmp_path / "b", "b") == second, "and again after a restart"


async def test_of_brokers_that_start_together_one_founds_the_cluster(store: EmbeddedStore, tmp_path: Path) -> None:
    joined = await asyncio.gather(*(join(store, tmp_path / name, name) for name in "abc"))
    (founder,) = {one.founder for one in joined}
    assert [one.log == founder.incarnation for one in joined] == [name == founder.node for name in "abc"]


async def test_a_founder_is_never_replaced_by_a_slower_one(store: EmbeddedStore, tmp_path: Path) -> None:
    faster: list[Joining] = []

    async def be_overtaken(_joining: Joining) -> None:
        if not faster:
            faster.append(await join(store, tmp_path / "a", "a"))

    slower = await join_cluster(store, Path("the-metadata"), DISK, tmp_path / "b", "b", be_overtaken)
    assert slower.founder == faster[0].founder
    assert slower.founder.node == "a"


async def test_a_founder_that_was_killed_before_it_had_a_directory_begins_another_log(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    killed = await join(store, tmp_path / "a", "a")
    again = await start(store, tmp_path / "a", "a")
    assert again.founder == killed.founder and again.log != killed.log
    assert await start(store, tmp_path / "a", "a") == again


async def test_brokers_of_one_name_that_start_together_get_different_logs(store: EmbeddedStore, tmp_path: Path) -> None:
    """So that the session of the one is never taken for that of a dead process of the other."""
    joined = await asyncio.gather(*(join(store, tmp_path / one, "broker-1") for one in ("a", "b", "c")))
    assert len({one.log for one in joined}) == 3 and len({one.founder for one in joined}) == 1


async def test_a_directory_of_another_cluster_is_refused_with_both_names(store: EmbeddedStore, tmp_path: Path) -> None:
    here = await start(store, tmp_path / "a", "a")
    DataDirectory.open(DISK, tmp_path / "b", cluster="danube-other", node="b").close()
    message = await refusal(store, tmp_path / "b", "b")
    assert f"{tmp_path / 'b'} belongs to cluster 'danube-other'" in message
    assert here.founder.cluster in message and "the-metadata" in message and "--metadata" in message


async def test_an_emptied_directory_of_a_known_name_is_refused(store: EmbeddedStore, tmp_path: Path) -> None:
    await start(store, tmp_path / "a", "a")
    message = await refusal(store, tmp_path / "elsewhere", "a")
    assert "is empty, but broker 'a'" in message and "mount the right disk" in message and "--name" in message


async def test_another_directory_under_a_known_name_is_refused(store: EmbeddedStore, tmp_path: Path) -> None:
    known = await start(store, tmp_path / "a", "a")
    DataDirectory.open(DISK, tmp_path / "x", cluster=known.founder.cluster, node="a").close()
    message = await refusal(store, tmp_path / "x", "a")
    assert known.log in message and "mount the data directory" in message


async def test_the_founder_of_copied_metadata_is_the_broker_of_its_directory(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    """A broker alone has no record of its name, only its identity and its log."""
    DataDirectory.open(DISK, tmp_path / "a", cluster="danube-old", node="a").close()
    found = DataDirectory.peek(DISK, tmp_path / "a")
    assert found is not None
    await store.transact([], [Put(IDENTITY_KEY, msgspec.json.encode(found[0])), Put(FOUNDER_LOG_KEY, b"3")])
    assert await join(store, tmp_path / "a", "a") == Joining(found[0], "a", found[0].incarnation)
    assert "is empty, but broker 'a'" in await refusal(store, tmp_path / "empty", "a")
    assert (await join(store, tmp_path / "b", "b")).founder == found[0]


async def test_metadata_that_was_emptied_is_refused(store: EmbeddedStore, tmp_path: Path) -> None:
    directory = DataDirectory.open(DISK, tmp_path / "a", cluster="danube-old", node="a")
    directory.add_part(METADATA_PART)
    directory.close()
    assert "the-metadata is empty, but" in await refusal(store, tmp_path / "a", "a")


async def test_a_living_broker_of_the_same_name_is_named_before_anything_else(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    mine = await start(store, tmp_path / "a", "a")
    living = BrokerSession("a", 1, BrokerAddresses("here:1", http="here:2"), log=mine.log, started_at=1)
    await store.transact([], [Put(session_key("a"), pack(living))])
    message = await refusal(store, tmp_path / "other", "a")
    assert "lives at here:1, here:2 since 1970-01-01 00:00:00 UTC" in message and "--name" in message
    assert await join(store, tmp_path / "a", "a") == mine, "its own directory: its lock says whether it lives"


async def test_a_store_that_is_refused_founds_no_cluster(store: EmbeddedStore, tmp_path: Path) -> None:
    async def refuse(joining: Joining) -> None:
        raise Refused(f"not the store of {joining.founder.cluster}")

    with pytest.raises(Refused, match="not the store of danube-"):
        await join_cluster(store, Path("the-metadata"), DISK, tmp_path / "a", "a", refuse)
    assert await store.list("") == []


@pytest.mark.parametrize(
    ("objects", "why"),
    [("", r"none is given: add --storage-url"), ("memory://x", r"memory://x is seen by this broker alone")],
)
async def test_a_store_that_no_other_broker_can_see_is_refused_before_etcd_is_asked(
    tmp_path: Path, objects: str, why: str
) -> None:
    given = {"server.data_dir": tmp_path / "data", "metadata.url": "etcd://127.0.0.1:1/x", "storage.url": objects}
    ports = dict.fromkeys(("server.port", "server.grpc_port", "server.admin_port", "server.http_port"), 0)
    with pytest.raises(Refused, match=why) as refused:
        await Server.start(Settings.load(None, {}, {**given, **ports}))
    assert "etcd://127.0.0.1:1/x" in refused.value.message
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240 - a small directory


async def test_a_directory_of_another_name_names_the_one_to_use(store: EmbeddedStore, tmp_path: Path) -> None:
    await start(store, tmp_path / "a", "a")
    assert "start it with --name a" in await refusal(store, tmp_path / "a", "b")


async def test_a_directory_of_another_name_founds_no_cluster(store: EmbeddedStore, tmp_path: Path) -> None:
    DataDirectory.open(DISK, tmp_path / "a", cluster="danube-old", node="a").close()
    assert "start it with --name a" in await refusal(store, tmp_path / "a", "b")
