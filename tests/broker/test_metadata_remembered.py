"""A served broker writes down how far its metadata has come, and a later start holds the metadata to it."""

import asyncio
import shutil
from contextlib import asynccontextmanager

import pytest

from pydanube.core.access import ANONYMOUS, AllowAll
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import Delete, Put, Succession
from pydanube.model.errors import Corrupt, Refused
from pydanube.model.names import TopicName
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import ManualClock, SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.server.server import REVISION_INTERVAL_S, Components, Server
from pydanube.settings import Settings
from pydanube.storage.metadata_seen import REVISION_FILE, read_seen
from waiting import until

TOPIC = TopicName.parse("/default/orders")


@asynccontextmanager
async def served(directory, clock=None):
    ports = {"server.port": 0, "server.http_port": 0, "grpc.data": False, "grpc.admin": False}
    chosen = {"server.data_dir": str(directory), **ports}
    components = Components(clock or SystemClock(), OsDisk(), AllowAll())
    server = await Server.start(Settings.load(overrides=chosen), components)
    try:
        yield server._native._resources.broker
    finally:
        await server.close()


async def start(directory) -> None:
    async with served(directory):
        pass


def seen(directory) -> tuple[str, int]:
    found = read_seen(OsDisk(), directory)
    assert found is not None
    return found


@asynccontextmanager
async def metadata_of(directory):
    async with await EmbeddedStore.open(directory / "metadata.db", SystemClock()) as store:
        yield store


async def test_while_the_broker_runs_the_revision_is_written_when_it_has_moved(tmp_path):
    clock = ManualClock()
    async with served(tmp_path, clock) as broker:
        store = broker._registry._store
        _, first = seen(tmp_path)
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        assert seen(tmp_path)[1] == first, "not on the way of a request"
        moved = await store.revision()
        assert moved > first
        await asyncio.sleep(0)
        clock.advance(REVISION_INTERVAL_S)
        await until(lambda: seen(tmp_path)[1] >= moved)
        assert broker._writer.metadata.revision >= moved, "the next log file names it"
        assert seen(tmp_path)[0] == (await store.identity()).store_id


async def test_a_clean_end_writes_it_too_and_the_old_form_is_replaced(tmp_path):
    await start(tmp_path)
    (tmp_path / REVISION_FILE).write_bytes(b"%d" % seen(tmp_path)[1])
    async with served(tmp_path) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
    async with metadata_of(tmp_path) as store:
        assert seen(tmp_path) == ((await store.identity()).store_id, await store.revision())


async def test_the_old_form_refuses_older_metadata_as_ever(tmp_path):
    await start(tmp_path)
    (tmp_path / REVISION_FILE).write_bytes(b"%d" % (seen(tmp_path)[1] + 100))
    with pytest.raises(Refused, match="put back the newest copy"):
        await start(tmp_path)


async def test_a_refused_start_leaves_the_revision_as_it_was(tmp_path):
    """Or the good copy, put back, would be refused as an older one."""
    async with served(tmp_path) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        await broker.open_producer(ANONYMOUS, TOPIC, 0, "", 0, 0, "shared", 0)
    before = (tmp_path / REVISION_FILE).read_bytes()
    async with metadata_of(tmp_path) as store:
        await store.transact([], [Delete("/counters/ledger")])
        await store.record_succession(Succession("f" * 32, 1))
    wal = tmp_path / "wal"
    shutil.copy(wal / "MANIFEST", tmp_path / "kept")
    (wal / "MANIFEST").unlink()
    with pytest.raises(Corrupt):
        await start(tmp_path)
    assert (tmp_path / REVISION_FILE).read_bytes() == before
    shutil.copy(tmp_path / "kept", wal / "MANIFEST")


async def test_another_store_is_refused_unless_it_succeeds_the_one_that_the_log_names(tmp_path):
    data, other = tmp_path / "data", tmp_path / "other"
    await start(data)
    await start(other)
    store_id, revision = seen(data)
    async with metadata_of(data) as store:
        identity = await store.get("/identity")
    for path in data.glob("metadata*"):
        path.unlink()
    for path in other.glob("metadata*"):
        shutil.copy(path, data / path.name)
    async with metadata_of(data) as store:
        await store.transact([], [Put("/identity", identity.value)])
    with pytest.raises(Refused, match=f"depends on metadata store {store_id}"):
        await start(data)
    (data / REVISION_FILE).unlink()
    with pytest.raises(Refused, match=rf"wal depends on metadata store {store_id}"):
        await start(data)
    async with metadata_of(data) as store:
        await store.record_succession(Succession(store_id, revision - 2))  # the log began one revision before the last
    with pytest.raises(Refused, match="is older than"):
        await start(data)
    async with metadata_of(data) as store:
        await store.record_succession(Succession(store_id, revision + 10))
    await start(data)
    assert seen(data)[0] != store_id
