"""A real broker with authentication loses its disk: the restored one has its roles, and no key that was made before."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from brokers import BrokerProcess

import pydanube
from pydanube.model.errors import Denied, Unauthenticated
from pydanube.runtime.objects.opening import open_store
from pydanube.server.restoring import restore
from pydanube.settings import Settings
from pydanube.storage.segments.manifest import newest_first

pytestmark = pytest.mark.process
TOPIC = "/default/orders"


async def until_in_manifest(store_url: str, cluster: str, key: str) -> None:
    """Until the newest manifest has this key of the metadata; it never has an API key."""
    async with await open_store(store_url, {}) as objects, asyncio.timeout(200):
        while True:
            async for manifest in newest_first(objects, cluster):
                found = {one for page in manifest.pairs() for one, _ in page}
                assert not any(one.startswith("/security/keys/") for one in found)
                if key in found:
                    return
                break
            await asyncio.sleep(0.2)


async def refused(url: str, key: str) -> bool:
    try:
        async with pydanube.connect(url, token=key):
            return False
    except Unauthenticated:
        return True


async def test_a_restored_broker_has_its_roles_and_no_key_of_before(tmp_path: Path) -> None:
    data, store_url = tmp_path / "data", (tmp_path / "objects").as_uri()
    environment = {
        "DANUBE_AUTH_ENABLED": "true",
        "DANUBE_STORAGE_URL": store_url,
        "DANUBE_STORAGE_SEGMENT_AGE_S": "0",
    }
    settings = Settings.load(None, {}, {"server.data_dir": str(data), "storage.url": store_url})
    with BrokerProcess(data, environment=environment) as broker:
        first = (data / "admin-key").read_text().strip()
        async with pydanube.connect(broker.url, token=first) as admin:
            await admin.create_topic(TOPIC)
            async with admin.producer(TOPIC) as producer:
                await producer.send(b"one")
            await admin.access.create_role("loader", ["produce"])
            await admin.access.create_binding("user:bob", ["loader"], TOPIC, binding_id="b1")
            revoked, live, late = [await admin.access.create_key("user:bob") for _ in range(3)]
            await admin.access.revoke_key(revoked.key.id)
            assert await refused(broker.url, revoked.secret) and not await refused(broker.url, late.secret)
            cluster = (await admin.describe_broker()).cluster
            await until_in_manifest(store_url, cluster, "/security/bindings/b1")
            await admin.access.revoke_key(late.key.id)  # the manifest is older than this
        broker.kill()
        shutil.rmtree(data)
        await restore(settings)
        broker.start()
        for key in (first, revoked.secret, live.secret, late.secret):
            assert await refused(broker.url, key)
        again = (data / "admin-key").read_text().strip()
        assert again != first
        async with pydanube.connect(broker.url, token=again) as admin:
            assert {one.name: one.actions for one in await admin.access.roles()}["loader"] == ("produce",)
            assert (await admin.access.can("produce", TOPIC, principal="user:bob")).binding == "b1"
            new = await admin.access.create_key("user:bob")
        async with pydanube.connect(broker.url, token=new.secret) as bob, bob.producer(TOPIC) as producer:
            await producer.send(b"two")
            with pytest.raises(Denied):
                await bob.create_topic("/default/other")
