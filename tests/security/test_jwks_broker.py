"""A broker whose JWTs are signed with keys of a URL: away at the start, there, rotated, away again; and over TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm
from ports import free_port
from tls_files import Authority

import pydanube
from pydanube.broker.security.jwks import JwksUrl, parse_jwks
from pydanube.model.errors import Unauthenticated, Unavailable
from pydanube.runtime.clock import SystemClock
from pydanube.testing import _server

ISSUER, AUDIENCE = "https://issuer.example", "danube"
KEYS = {name: ed25519.Ed25519PrivateKey.generate() for name in ("old", "new")}


def document(*names: str) -> bytes:
    made = [{**json.loads(OKPAlgorithm.to_jwk(KEYS[one].public_key())), "kid": one} for one in names]
    return json.dumps({"keys": made}).encode()


def token(key: str, name: str = "admin") -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": name, "exp": SystemClock().now_us() // 1_000_000 + 600}
    return jwt.encode(claims, KEYS[key], "EdDSA", headers={"kid": key})


class Issuer:
    """An identity provider: answers every request with its document."""

    def __init__(self) -> None:
        self.document = b""
        self._server: asyncio.Server | None = None

    async def start(self, port: int, context: ssl.SSLContext | None = None) -> int:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", port, ssl=context)
        return int(self._server.sockets[0].getsockname()[1])

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.document) + self.document)
        writer.close()

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()


@contextmanager
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    try:
        yield made
    finally:
        made.stop()


async def accepted(url: str, shown: str) -> bool:
    try:
        async with pydanube.connect(url, token=shown) as client:
            return (await client.access.whoami()).principal == "user:admin"
    except Unauthenticated:
        return False


async def until_accepted(url: str, shown: str, wanted: bool = True) -> None:
    async with asyncio.timeout(60):
        while await accepted(url, shown) != wanted:  # noqa: ASYNC110 - the broker reads the document
            await asyncio.sleep(0.2)


async def test_a_broker_lives_through_outages_and_rotations_of_its_issuer(tmp_path: Path) -> None:
    port = free_port()
    settings: dict[str, Any] = {
        "auth_enabled": True,
        "auth_jwks_url": f"http://127.0.0.1:{port}/keys",
        "auth_issuer": ISSUER,
        "auth_audience": AUDIENCE,
        "auth_jwks_refresh_s": 1,
        "auth_failures_max": 1_000_000,
    }
    with issuer() as provider:
        async with _server(tmp_path, settings) as server:  # it starts, although the issuer is away
            key = (tmp_path / "admin-key").read_text().strip()
            assert await accepted(server.url, key)
            assert not await accepted(server.url, token("old"))
            provider.document = document("old")
            await provider.start(port)
            await until_accepted(server.url, token("old"))
            async with pydanube.connect(server.url, token=token("old")) as client:
                await client.create_topic("/default/kept")
                provider.document = document("old", "new")
                await until_accepted(server.url, token("new"))
                assert await accepted(server.url, token("old"))
                provider.document = document("new")
                await until_accepted(server.url, token("old"), wanted=False)
                assert await client.list_topics()  # what it opened goes on until the token ends
            provider.stop()
            assert await accepted(server.url, token("new"))  # a token that was never seen, a key that was
            assert await accepted(server.url, key)


async def test_the_server_of_a_jwks_must_be_of_a_trusted_authority_and_name(tmp_path: Path) -> None:
    authority, strange = Authority(tmp_path / "authority"), Authority(tmp_path / "strange")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = authority.issue("issuer", "localhost")
    context.load_cert_chain(pair.cert_file, pair.key_file)
    with issuer() as provider:
        provider.document = document("old")
        port = await provider.start(0, context)
        found = await JwksUrl(f"https://localhost:{port}/keys", authority.ca_file)()
        assert parse_jwks(found or b"").keys() == {"old"}
        for url, ca_file in (
            (f"https://localhost:{port}/keys", strange.ca_file),
            (f"https://localhost:{port}/keys", None),
            (f"https://127.0.0.1:{port}/keys", authority.ca_file),
        ):
            with pytest.raises(Unavailable, match=r"cannot be reached"):
                await JwksUrl(url, ca_file)()
