"""Redis, against a real server. Runs with `make test-stores`."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator

import pytest
from object_servers import Server, missing_redis, redis_server
from objects_conformance import Conformance, Place, keys_of, outcome

from pydanube.model.errors import Denied, Invalid, Refused, Unauthenticated, Unavailable
from pydanube.runtime.objects import open_store
from pydanube.runtime.randomness import identity

pytestmark = pytest.mark.stores

PASSWORD = "a-password-for-tests"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assert not missing_redis(), missing_redis()
    options = ["--requirepass", PASSWORD, "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    with redis_server(tmp_path_factory.mktemp("redis"), *options) as server:
        yield server


@pytest.fixture
def place(server: Server) -> Place:
    return Place(f"redis://127.0.0.1:{server.port}/3?prefix={identity()}", {"password": PASSWORD})


class TestRedis(Conformance):
    pass


async def test_no_credential_is_in_what_is_said_of_a_refusal(place: Place) -> None:
    for settings in ({"password": "a-wrong-password"}, {"username": "nobody-here", "password": "a-wrong-password"}, {}):
        with pytest.raises(Unauthenticated) as refused:
            await open_store(place.url, settings)
        assert "a-wrong-password" not in "".join(traceback.format_exception(refused.value))


async def test_credentials_in_the_url_are_refused_and_not_repeated() -> None:
    for url in ("redis://:hidden-word@127.0.0.1/0", "redis://user:hidden-word@127.0.0.1:6379"):
        with pytest.raises(Invalid) as refused:
            await open_store(url)
        assert "hidden-word" not in str(refused.value)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="redis://127"):
        await open_store("redis://127.0.0.1:1")


async def test_what_a_url_cannot_mean_is_refused() -> None:
    with pytest.raises(Invalid, match="number of a database"):
        await open_store("redis://127.0.0.1/name")
    with pytest.raises(Invalid, match="names a host"):
        await open_store("redis:///0")
    with pytest.raises(Invalid, match="parameter 'password'"):
        await open_store("redis://127.0.0.1/0?password=x")


async def test_a_server_without_a_log_says_that_it_is_not_durable(tmp_path_factory: pytest.TempPathFactory) -> None:
    with redis_server(tmp_path_factory.mktemp("redis"), "--save", "") as server:
        async with await open_store(f"redis://127.0.0.1:{server.port}") as store:
            assert not store.capabilities.durable and store.capabilities.shared


async def test_a_server_that_forgets_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]
    with redis_server(tmp_path_factory.mktemp("redis"), *options) as server, pytest.raises(Refused, match="noeviction"):
        await open_store(f"redis://127.0.0.1:{server.port}")


async def test_a_full_server_stores_nothing_and_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    options = ["--maxmemory", "8mb", "--maxmemory-policy", "noeviction"]
    with redis_server(tmp_path_factory.mktemp("redis"), *options) as server:
        async with await open_store(f"redis://127.0.0.1:{server.port}") as store:
            outcomes = [await outcome(store.put(f"k{n}", bytes(1 << 20), create=True)) for n in range(20)]
            assert isinstance(outcomes[-1], Unavailable)
            for info in [info async for info in store.list()]:
                assert len(await store.get(info.key)) == 1 << 20


async def test_a_user_who_may_only_read_is_denied(place: Place) -> None:
    from redis.asyncio import Redis

    port = int(place.url.split(":")[2].split("/")[0])
    async with Redis(host="127.0.0.1", port=port, password=PASSWORD) as admin:
        await admin.execute_command(
            "ACL", "SETUSER", "reader", "on", ">reading-only", "~*", "+@read", "+@connection", "+info", "+evalsha"
        )
    async with await open_store(place.url, {"username": "reader", "password": "reading-only"}) as store:
        assert await keys_of(store) == []
        with pytest.raises(Denied):
            await store.put("k", b"")


async def test_what_was_put_survives_the_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("redis")
    options = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    with redis_server(directory, *options) as server:
        async with await open_store(f"redis://127.0.0.1:{server.port}") as store:
            assert store.capabilities.durable
            put = await store.put("k", b"kept", create=True)
        await asyncio.to_thread(server.process.kill)
    with redis_server(directory, *options) as server:
        async with await open_store(f"redis://127.0.0.1:{server.port}") as store:
            assert await store.get("k") == b"kept" and await store.head("k") == put
