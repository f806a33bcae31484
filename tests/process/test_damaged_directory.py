"""Real brokers on directories that were damaged while nobody looked: refused with a name, and nothing is freed."""

import asyncio
import shutil
from pathlib import Path

import pytest
from brokers import BrokerProcess

import pydanube
from exhaustive import several
from pydanube.broker.registry import records
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import Delete, list_all
from pydanube.model.errors import Corrupt
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.storage.metadata_seen import REVISION_FILE
from pydanube.storage.wal.mark import read_mark

pytestmark = pytest.mark.process
TOPIC, OTHER = "/default/orders", "/default/other"
PAYLOADS = [b"%d " % n * 50 for n in range(40)]


async def publish(url: str, topic: str = TOPIC) -> None:
    """Publish batches one after the other, so that each is synced by itself."""
    async with pydanube.connect(url) as client, client.producer(topic) as producer:
        for payload in PAYLOADS:
            await producer.send(payload)


async def read_back(url: str, topic: str = TOPIC) -> list[bytes]:
    async with pydanube.connect(url) as client, client.reader(topic, start="earliest", end="latest") as reader:
        return [message.payload async for message in reader]


def refusal(broker: BrokerProcess) -> str:
    """Return what a start that is refused writes to the log; empty if the broker serves."""
    before = broker.log.stat().st_size
    try:
        broker.start()
    except AssertionError:
        broker.ended(30)
        said = broker.log.read_bytes()[before:].decode()
        assert "Traceback" not in said, said
        return said
    return ""


def metadata_files(data: Path) -> list[Path]:
    return sorted(data.glob("metadata*"))


def put_back(copy: Path, data: Path) -> None:
    for path in metadata_files(data):
        path.unlink()
    for path in metadata_files(copy):
        shutil.copy(path, data / path.name)


def log_files(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (data / "wal").glob("*.log")}


# -- the open log file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", pytest.param("zeroed", marks=pytest.mark.exhaustive)])
async def test_an_open_log_file_that_lost_what_was_synced_is_never_served_as_whole(tmp_path, how):
    data, copy = tmp_path / "data", tmp_path / "copy"
    broker = BrokerProcess(data).start()
    try:
        await publish(broker.url)
    finally:
        broker.kill()
    shutil.copytree(data, copy)
    mark = read_mark(OsDisk(), data / "wal")
    assert mark is not None
    newest = max((data / "wal").glob("wal-*.log"))
    for lost in (64, 300, 2000, 12_000):
        shutil.rmtree(data)
        shutil.copytree(copy, data)
        content = newest.read_bytes()
        kept = mark.position - lost
        newest.write_bytes(content[:kept] + (bytes(len(content) - kept) if how == "zeroed" else b""))
        said = refusal(broker)
        try:
            if said:
                assert newest.name in said, said
                assert "docs/log.md" in said, said
            else:  # the header of the damaged record is whole: only its partition is refused
                with pytest.raises(Corrupt, match=newest.name):
                    await read_back(broker.url)
        finally:
            if broker.is_alive:
                broker.kill()
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    with broker:
        assert await read_back(broker.url) == PAYLOADS


# -- the metadata ------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("forgets", [False, True], ids=["revision file there", "revision file gone"])
async def test_an_older_copy_of_the_metadata_is_refused_after_kill_9(tmp_path, forgets):
    data, older, newest = tmp_path / "data", tmp_path / "older", tmp_path / "newest"
    broker = BrokerProcess(data).start()
    try:
        await publish(broker.url)
        broker.stop()
        shutil.copytree(data, older)
        broker.start()
        await publish(broker.url, OTHER)
    finally:
        broker.kill()
    shutil.copytree(data, newest)
    put_back(older, data)
    if forgets:
        (data / REVISION_FILE).unlink()
    before = log_files(data)
    assert "put back the newest copy of the metadata" in refusal(broker)
    assert log_files(data) == before
    put_back(newest, data)
    with broker:
        assert await read_back(broker.url, OTHER) == PAYLOADS
        assert await read_back(broker.url) == PAYLOADS


async def test_metadata_that_lost_a_topic_is_refused_and_a_good_copy_serves_everything(tmp_path):
    data, good = tmp_path / "data", tmp_path / "good"
    broker = BrokerProcess(data).start()
    try:
        await asyncio.gather(publish(broker.url), publish(broker.url, OTHER))
    finally:
        broker.stop()
    shutil.copytree(data, good)
    async with await EmbeddedStore.open(data / "metadata.db", SystemClock()) as store:
        lost = [one.key async for one in list_all(store, records.LEDGERS)][:1]
        topic_id = records.ledger_of_key(lost[0])[0]
        for prefix in (records.ledgers_of(topic_id), records.partitions_of(topic_id)):
            await store.transact([], [Delete(one.key) async for one in list_all(store, prefix)])
        topics = [one async for one in list_all(store, records.TOPICS)]
        name = next(one.key for one in topics if unpack(one.value, records.TopicRecord).topic_id == topic_id)
        await store.transact([], [Delete(name)])
    before = log_files(data)
    for _ in range(2):
        said = refusal(broker)
        assert "neither lists nor records as dropped" in said, said
        assert "wal-0000000001.log" in said
        assert log_files(data) == before, "nothing is freed, and refused starts leave no files behind"
    put_back(good, data)
    with broker:
        assert await read_back(broker.url) == PAYLOADS
        assert await read_back(broker.url, OTHER) == PAYLOADS


async def test_a_damaged_revision_file_is_named(tmp_path):
    data = tmp_path / "data"
    broker = BrokerProcess(data).start()
    broker.stop()
    for content in several([b"12x"], [b"", b"12x", b"\xff" * 20]):
        (data / REVISION_FILE).write_bytes(content)
        assert f"{REVISION_FILE} " in refusal(broker)
    (data / REVISION_FILE).unlink()
    with broker:
        assert await read_back_topics(broker.url) == []


async def read_back_topics(url: str) -> list[str]:
    async with pydanube.connect(url) as client:
        return await client.list_topics()


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_over_the_crashed_one", [False, True], ids=["the log alone", "a backup over the directory"])
async def test_a_log_that_is_older_than_the_metadata_is_refused(tmp_path, is_over_the_crashed_one):
    data, copy = tmp_path / "data", tmp_path / "copy"
    with BrokerProcess(data) as broker:
        await publish(broker.url)
        broker.stop()
        shutil.copytree(data, copy)
        broker.start()
        await publish(broker.url, OTHER)
        broker.kill()
        newest = tmp_path / "newest"
        shutil.copytree(data, newest)
        if is_over_the_crashed_one:  # as with `cp -a`: files stay that the backup does not have, metadata.db-wal too
            shutil.copytree(copy, data, dirs_exist_ok=True)
        else:
            shutil.rmtree(data / "wal")
            shutil.copytree(copy / "wal", data / "wal")
        files = sorted(path.name for path in (data / "wal").iterdir())
        assert "the log is an older copy" in refusal(broker)
        assert sorted(path.name for path in (data / "wal").iterdir()) == files, "nothing is removed"
        shutil.rmtree(data)
        shutil.copytree(newest, data)
        broker.start()
        assert await read_back(broker.url) == await read_back(broker.url, OTHER) == PAYLOADS
