"""`danube metadata copy`: a broker goes on with its metadata in another store. The parts with etcd run by
`make test-cluster`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from etcd_cluster import EtcdMember, etcd_cluster, missing_etcd

import pydanube
from conformance import put
from pydanube.broker.cluster.node_records import NodeRecord, node_key, pack, session_key
from pydanube.broker.registry.records import PartitionRecord, TopicRecord, partition_key, topic_key
from pydanube.cli.root import cli
from pydanube.codec.wal import NodeIdentity
from pydanube.metadata import Put, Succession, list_all
from pydanube.metadata.etcd.place import EtcdPlace
from pydanube.metadata.opening import MetadataPlace, open_metadata
from pydanube.metadata.store import MetadataStore
from pydanube.model.cluster import BrokerAddresses, BrokerSession
from pydanube.model.errors import Refused
from pydanube.model.names import TopicName
from pydanube.runtime.clock import SystemClock
from pydanube.server.copying import copy_metadata
from pydanube.server.server import IDENTITY_KEY, Server
from pydanube.settings import Settings
from pydanube.storage.segments.manifest import number_at

TOPIC = "/default/orders"
IDENTITY = msgspec.json.encode(NodeIdentity("danube-1", "broker-1", "log-1"))
with_etcd = [pytest.mark.etcd, pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there")]


@pytest.fixture
def member(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdMember | None]:
    if request.node.get_closest_marker("etcd") is None:
        yield None
        return
    with etcd_cluster(tmp_path / "etcd", 1) as cluster:
        yield cluster.members[0]


@contextlib.asynccontextmanager
async def running(data_dir: Path, place: MetadataPlace) -> AsyncIterator[Server]:
    where = {"metadata.path": place} if isinstance(place, Path) else {"metadata.url": str(place)}
    ports = dict.fromkeys(("server.port", "server.grpc_port", "server.admin_port", "server.http_port"), 0)
    listeners = {"grpc.data": False, "grpc.admin": False, "server.http": False}
    objects = {"storage.url": (data_dir / "objects").as_uri()}
    given = {"server.data_dir": data_dir, **where, **objects, **ports, **listeners}
    server = await Server.start(Settings.load(None, {}, given))
    try:
        yield server
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def opened(place: MetadataPlace) -> AsyncIterator[MetadataStore]:
    store = await open_metadata(place, SystemClock())
    try:
        yield store
    finally:
        await store.close()


async def publish_and_receive(server: Server, first: int) -> list[bytes]:
    """Publish ten messages, and acknowledge the five that the subscription gets next."""
    async with pydanube.connect(server.url) as client:
        async with client.producer(TOPIC, name="meter") as producer:
            for number in range(first, first + 10):
                receipt = await producer.send(b"%d" % number)
                assert receipt.offset == number
        found = []
        async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
            for _ in range(5):
                message = await consumer.receive(timeout=60)
                await consumer.ack(message)
                found.append(message.payload)
        return found


async def create(server: Server) -> None:
    async with pydanube.connect(server.url) as client:
        await client.create_topic(TOPIC)


@pytest.mark.parametrize("to", ["file", pytest.param("etcd", marks=with_etcd)])
async def test_a_broker_goes_on_where_it_was_with_a_copy_and_with_the_copy_of_that(
    to: str, tmp_path: Path, member: EtcdMember | None
) -> None:
    data, original = tmp_path / "data", tmp_path / "original.db"
    second: MetadataPlace = tmp_path / "second.db"
    if to == "etcd":
        assert member is not None
        second = EtcdPlace((member.address,), "moved")
    third = tmp_path / "third.db"
    async with running(data, original) as server:
        await create(server)
        assert await publish_and_receive(server, 0) == [b"%d" % number for number in range(5)]
    first = await copy_metadata(original, second, SystemClock())
    async with running(data, second) as server:
        assert await publish_and_receive(server, 10) == [b"%d" % number for number in range(5, 10)]
    with pytest.raises(Refused, match="does not succeed it"):
        async with running(data, original):
            pass
    then = await copy_metadata(second, third, SystemClock())
    assert (then.succeeds, then.keys > 5) == (first.store_id, True)
    async with running(data, third) as server:
        assert await publish_and_receive(server, 20) == [b"%d" % number for number in range(10, 15)]
    async with opened(third) as store:
        succeeds = (await store.identity()).succeeds
        assert succeeds[-1] == Succession(then.succeeds, then.revision)
        assert Succession(first.succeeds, first.revision) in succeeds


async def test_a_copy_holds_the_same_keys_and_values_and_the_numbers_of_manifests_go_on(tmp_path: Path) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    async with opened(source) as store:
        await store.transact([], [Put(IDENTITY_KEY, IDENTITY), Put("/log", b"3")])
        for number in range(30):
            await put(store, f"/large/{number:02}", bytes([number]) * 300_000)
        for number in range(300):
            await put(store, f"/small/{number}", b"%d" % number)
        lease, _ = await store.grant_lease(60_000)
        await put(store, "/session", b"mine", lease)
        expected = {one.key: one.value async for one in list_all(store, "") if not one.lease}
        last_number = await number_at(store, await store.revision())
    copied = await copy_metadata(source, target, SystemClock())
    assert copied.keys == len(expected) + 1
    async with opened(target) as store:
        found = {one.key: one.value async for one in list_all(store, "")}
        assert found.pop("/manifests/base") == b"%d" % last_number
        assert found == expected
        assert await number_at(store, await store.revision()) > last_number


async def test_what_is_not_empty_and_what_is_no_metadata_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    with pytest.raises(Refused, match=r"a\.db holds no metadata of a broker"):
        await copy_metadata(source, target, SystemClock())
    assert not target.exists()
    async with opened(source) as store:
        await put(store, IDENTITY_KEY, IDENTITY)
    async with opened(target) as store:
        await put(store, "/a")
    with pytest.raises(Refused, match=r"b\.db is not empty"):
        await copy_metadata(source, target, SystemClock())


async def test_metadata_that_a_broker_of_a_cluster_uses_is_not_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    async with opened(source) as store:
        await put(store, IDENTITY_KEY, IDENTITY)
        lease, _ = await store.grant_lease(60_000)
        session = BrokerSession("b", 4, BrokerAddresses("10.0.0.2:6655"), log="log-2")
        await put(store, session_key("b"), pack(session), lease)
    with pytest.raises(Refused, match=r"a\.db is in use by broker 'b' at 10\.0\.0\.2:6655: stop all brokers"):
        await copy_metadata(source, target, SystemClock())
    assert not target.exists()


@pytest.mark.parametrize(
    ("ack_level", "log", "is_refused"),
    [
        ("durable", "log-2", True),
        ("written", "log-2", True),
        ("durable", "log-1", False),
        ("durable", "", False),
        ("memory", "log-2", False),
    ],
)
async def test_partitions_in_the_logs_of_others_do_not_go_to_a_file(
    ack_level: str, log: str, is_refused: bool, tmp_path: Path
) -> None:
    """The broker that goes on alone would not know what these logs hold, and would give out their offsets again."""
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    topic = TopicRecord(7, partitions=2, ack_level=ack_level)
    async with opened(source) as store:
        await put(store, IDENTITY_KEY, IDENTITY)
        await put(store, node_key("b"), pack(NodeRecord("log-2")))
        await put(store, topic_key(TopicName("default", "orders")), pack(topic))
        await put(store, partition_key(7, 1), pack(PartitionRecord(epoch=1, owner="b", incarnation=2, log=log)))
    if not is_refused:
        await copy_metadata(source, target, SystemClock())
        return
    with pytest.raises(Refused, match=r"/default/orders-part-1 \(broker 'b'\); start the cluster again"):
        await copy_metadata(source, target, SystemClock())
    assert not target.exists()


async def test_a_source_that_changes_meanwhile_is_noticed_and_its_copy_cannot_be_used(tmp_path: Path) -> None:
    """The file of a broker that runs is locked; what is in etcd could change."""
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    async with opened(source) as store:
        await put(store, IDENTITY_KEY, IDENTITY)
        await put(store, "/b", b"old")
    formers = []

    async def changing(place: MetadataPlace, clock: SystemClock) -> MetadataStore:
        formers.append(await open_metadata(place, clock))
        if place == target:
            return Changing(formers[-1], formers[0])  # type: ignore[return-value]
        return formers[-1]

    class Changing:
        """The target of a copy, which changes the source while it is written."""

        def __init__(self, store: MetadataStore, other: MetadataStore) -> None:
            self._store, self._other = store, other

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        async def transact(self, compares: list[object], writes: list[Put]) -> object:
            if any(write.key == "/b" for write in writes):
                await put(self._other, "/b", b"new")
            return await self._store.transact(compares, writes)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pydanube.server.copying.open_metadata", changing)
        with pytest.raises(Refused, match="was changed while it was copied"):
            await copy_metadata(source, target, SystemClock())
    async with opened(target) as store:
        assert await store.get(IDENTITY_KEY) is None


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    there, run = tmp_path / "there.db", CliRunner()
    there.write_bytes(b"")
    for arguments, why in (
        (["--from", str(tmp_path), "--to", "x.db"], "there is no metadata in"),
        (["--from", str(there), "--to", str(there)], "exists"),
        (["--from", str(there), "--to", "zk://a/b"], "etcd://host:2379"),
    ):
        result = run.invoke(cli, ["metadata", "copy", *arguments])
        assert result.exit_code != 0
        assert why in result.output + str(result.exception)


async def test_the_command_copies_a_data_directory(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "copy.db"
    async with running(data, data / "metadata.db") as server:
        await create(server)
    arguments = ["metadata", "copy", "--from", str(data), "--to", str(target)]
    result = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    assert (result.exit_code, "and compared" in result.output) == (0, True)
    async with running(data, target) as server, pydanube.connect(server.url) as client:
        assert TOPIC in [str(name) for name in await client.list_topics()]
