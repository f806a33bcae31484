"""The gRPC storage plug-in: other stores behind it pass as if they were here."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from objects_conformance import Conformance, Place, keys_of

from pydanube.model import errors
from pydanube.model.errors import DanubeError, Invalid, NotFound, Unauthenticated, Unavailable
from pydanube.runtime.objects import ObjectStore, open_store
from pydanube.runtime.objects.local import LocalStore
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.objects.plugin_messages import (
    CHUNK_BYTES,
    ERROR_KEY,
    MESSAGES,
    METHODS,
    STATUS_OF,
    chunks,
    error_of,
    value_of,
)
from pydanube.runtime.objects.plugin_server import PluginServer

MESSAGE_BYTES_MAX = 4 * 1024 * 1024


@asynccontextmanager
async def served(store: ObjectStore, token: str = "") -> AsyncIterator[int]:
    server = PluginServer(store, token=token)
    port = await server.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.close()


class TestOverMemory(Conformance):
    @pytest.fixture
    async def place(self) -> AsyncIterator[Place]:
        async with served(MemoryStore()) as port:
            yield Place(f"grpc://127.0.0.1:{port}")


class TestOverDirectory(Conformance):
    @pytest.fixture
    async def place(self, tmp_path: Path) -> AsyncIterator[Place]:
        async with await LocalStore.open(tmp_path, shared=True) as store, served(store, "let-me-in") as port:
            yield Place(f"grpc://127.0.0.1:{port}", {"token": "let-me-in"})


# -- errors ------------------------------------------------------------------------------------------------------------


class Failing(MemoryStore):
    """A store that fails as it is told."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def head(self, key: str) -> Any:
        raise self.error

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        raise self.error


@pytest.mark.parametrize("kind", errors.tree(), ids=lambda kind: kind.__name__)
async def test_every_error_arrives_as_what_it_was(kind: type[DanubeError]) -> None:
    assert kind in STATUS_OF
    async with served(Failing(kind("because"))) as port, await open_store(f"grpc://127.0.0.1:{port}") as store:
        for work in (store.head("k"), store.get("k")):
            with pytest.raises(DanubeError, match="because") as raised:
                await work
            assert type(raised.value) is kind


async def test_a_plug_in_by_others_need_only_know_status_codes() -> None:
    for status in grpc.StatusCode:
        assert isinstance(error_of(status, "", "why"), DanubeError)
    assert type(error_of(grpc.StatusCode.NOT_FOUND, "", "")) is NotFound
    assert type(error_of(grpc.StatusCode.DEADLINE_EXCEEDED, "", "")) is Unavailable
    assert type(error_of(grpc.StatusCode.FAILED_PRECONDITION, "", "")) is errors.Refused


async def test_a_mistake_in_the_store_is_not_shown_to_the_client() -> None:
    async with (
        served(Failing(ValueError("secret internals"))) as port,
        await open_store(f"grpc://127.0.0.1:{port}") as store,
    ):
        with pytest.raises(Unavailable, match="its log says why") as raised:
            await store.head("k")
        assert "secret internals" not in str(raised.value)


async def test_a_plug_in_that_is_not_there_is_unavailable_in_bounded_time() -> None:
    with pytest.raises(Unavailable, match=r"grpc://127\.0\.0\.1:1"):
        await open_store("grpc://127.0.0.1:1", {"connect_timeout_s": "0.3"})
    for url in ("grpc://127.0.0.1", "grpc://:6680"):
        with pytest.raises(Invalid, match="host and a port"):
            await open_store(url)


async def test_a_plug_in_that_comes_back_is_used_again() -> None:
    memory = MemoryStore()
    async with served(memory) as port:
        store = await open_store(f"grpc://127.0.0.1:{port}", {"timeout_s": "5"})
        await store.put("k", b"kept")
    async with store:
        with pytest.raises(Unavailable):
            await store.get("k")
        server = PluginServer(memory)
        assert await server.start("127.0.0.1", port) == port
        try:
            async with asyncio.timeout(60):
                while True:
                    try:
                        assert await store.get("k") == b"kept"
                        break
                    except Unavailable:
                        await asyncio.sleep(0.05)
        finally:
            await server.close()


async def test_who_does_not_bring_the_token_is_turned_away() -> None:
    async with served(MemoryStore(), "the-right-token") as port:
        url = f"grpc://127.0.0.1:{port}"
        for settings in ({}, {"token": "a-wrong-token"}):
            with pytest.raises(Unauthenticated) as refused:
                await open_store(url, settings)
            said = "".join(traceback.format_exception(refused.value))
            assert "the-right-token" not in said and "a-wrong-token" not in said
        async with await open_store(url, {"token": "the-right-token"}) as store:
            assert "the-right-token" not in repr(store) + store.url


@pytest.mark.parametrize("token", ["let-me-in", "wrong"])
async def test_what_is_no_message_of_the_service_is_refused_after_the_token(token: str) -> None:
    expected = grpc.StatusCode.INVALID_ARGUMENT if token == "let-me-in" else grpc.StatusCode.UNAUTHENTICATED
    async with (
        served(MemoryStore(), "let-me-in") as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        for name in METHODS:
            call = channel.unary_stream(f"/pydanube.storage.v1.ObjectStorage/{name}")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async for _ in call(b"\xff" * 50, metadata=(("authorization", f"Bearer {token}"),)):
                    pass
            assert refused.value.code() is expected, name


async def test_garbage_on_the_port_harms_no_other_client() -> None:
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    async with served(MemoryStore()) as port, await open_store(f"grpc://127.0.0.1:{port}") as store:
        for number in range(60):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if number % 2 else b""
            writer.write(greeting + chance.randbytes(chance.randrange(1, 5000)))
            writer.close()
            await store.put(f"key-{number}", b"bytes", create=True)
        assert len(await keys_of(store)) == 60


async def test_a_path_in_the_url_is_a_prefix() -> None:
    memory = MemoryStore()
    async with served(memory) as port, await open_store(f"grpc://127.0.0.1:{port}/some/part") as store:
        await store.put("k", b"")
        assert await keys_of(store) == ["k"] and await keys_of(memory) == ["some/part/k"]
        assert store.url == f"grpc://127.0.0.1:{port}/some/part"


# -- streams -----------------------------------------------------------------------------------------------------------


def put_call(channel: grpc.aio.Channel) -> Any:
    method = METHODS["Put"]
    return channel.stream_unary(method.path, method.request.SerializeToString, method.reply.FromString)


async def test_a_stream_that_ends_early_or_late_stores_nothing() -> None:
    memory = MemoryStore()
    request, start = MESSAGES["PutRequest"], MESSAGES["PutStart"](key="k", size=10)
    wrong: list[list[Any]] = [
        [],
        [request(data=b"no start")],
        [request(start=start)],
        [request(start=start), request(data=b"123456789")],
        [request(start=start), request(data=b"12345678901")],
        [request(start=MESSAGES["PutStart"](key="not a key", size=0))],
        [request(start=MESSAGES["PutStart"](key="k", size=1 << 40))],
    ]
    async with served(memory) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for requests in wrong:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await put_call(channel)(iter(requests))
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert value_of(raised.value.trailing_metadata(), ERROR_KEY) == str(Invalid.code)
        call = put_call(channel)()
        await call.write(request(start=start))
        await call.write(request(data=b"half"))
        call.cancel()
        assert await keys_of(memory) == []


def test_chunks_are_of_one_size_and_small_enough() -> None:
    pieces = [memoryview(bytes([n % 256]) * size) for n, size in enumerate([1, 0, 3 * CHUNK_BYTES, 5, CHUNK_BYTES - 7])]
    made = list(chunks(pieces))
    assert b"".join(made) == b"".join(pieces)
    assert [len(chunk) for chunk in made[:-1]] == [CHUNK_BYTES] * (len(made) - 1)
    largest = MESSAGES["PutRequest"](data=bytes(CHUNK_BYTES)).ByteSize()
    assert largest < MESSAGE_BYTES_MAX
    assert list(chunks([])) == []


def test_a_full_page_of_the_longest_keys_fits_into_a_message() -> None:
    info = MESSAGES["Info"](key="k" * 512, size=1 << 40, etag="e" * 200, modified_us=1 << 50)
    assert MESSAGES["ListReply"](objects=[info] * 500).ByteSize() < MESSAGE_BYTES_MAX
    assert MESSAGES["DeleteRequest"](keys=["k" * 512] * 1000).ByteSize() < MESSAGE_BYTES_MAX


def test_the_messages_have_the_bytes_that_the_file_says() -> None:
    put = MESSAGES["PutRequest"](start=MESSAGES["PutStart"](key="a/b", size=300, create=True, if_match="e"))
    assert put.SerializeToString().hex() == "0a0d0a03612f6210ac02180122" + "0165"
    assert MESSAGES["GetRequest"](key="k", start=1, end=-1).SerializeToString().hex() == (
        "0a016b1001" + "18ffffffffffffffffff01"
    )
    assert MESSAGES["Info"](key="k", size=5, etag="e", modified_us=7).SerializeToString().hex() == "0a016b1005" + (
        "1a0165" + "2007"
    )
    assert {name: method.path for name, method in METHODS.items()} == {
        name: f"/pydanube.storage.v1.ObjectStorage/{name}"
        for name in ("Describe", "Put", "Get", "Head", "List", "Delete")
    }


# -- encryption --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing: apt install openssl")
async def test_an_encrypted_plug_in_is_checked_by_its_certificate(tmp_path: Path) -> None:
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(chain)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    server = PluginServer(MemoryStore())
    port = await server.start("127.0.0.1", 0, certificate=(key.read_bytes(), chain.read_bytes()))
    try:
        async with await open_store(f"grpcs://localhost:{port}", {"ca_file": str(chain)}) as store:
            await store.put("k", b"encrypted")
            assert await store.get("k") == b"encrypted"
        with pytest.raises(Unavailable):
            await open_store(f"grpcs://localhost:{port}", {"connect_timeout_s": "0.5"})
        with pytest.raises(Invalid, match="cannot be read"):
            await open_store(f"grpcs://localhost:{port}", {"ca_file": str(tmp_path / "none")})
    finally:
        await server.close()
