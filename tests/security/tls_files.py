"""Certificates in files, and brokers that use them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trustme

from pydanube.server.server import Server
from pydanube.settings import Settings


class Authority:
    """A certificate authority whose certificates lie in a directory."""

    def __init__(self, directory: Path) -> None:
        self._authority = trustme.CA()
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.ca_file = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca_file)

    def issue(self, name: str, *names: str, not_after: datetime | None = None, common_name: str = "") -> Pair:
        """Write NAME.pem and NAME-key.pem, each in one step; `names` are the alternative names."""
        issued = self._authority.issue_cert(
            *(names or ("127.0.0.1", "localhost")), common_name=common_name or name, not_after=not_after
        )
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}-key.pem")
        pair.write(b"".join(one.bytes() for one in issued.cert_chain_pems), issued.private_key_pem.bytes())
        return pair


class Pair:
    def __init__(self, cert_file: Path, key_file: Path) -> None:
        self.cert_file = cert_file
        self.key_file = key_file

    def write(self, certificate: bytes, key: bytes) -> None:
        for path, content in ((self.cert_file, certificate), (self.key_file, key)):
            new = path.with_suffix(".new")
            new.write_bytes(content)
            new.chmod(0o600)
            os.replace(new, path)  # noqa: PTH105


EXPIRED = datetime(2020, 1, 1, tzinfo=UTC)


def tls_settings(directory: Path, pair: Pair, **overrides: Any) -> Settings:
    """Return settings of a broker with TLS on free ports; `overrides` have '__' for the dot of a setting."""
    ports = {f"server.{name}": 0 for name in ("port", "grpc_port", "admin_port", "http_port")}
    chosen = {
        "server.data_dir": str(directory),
        **ports,
        "tls.cert_file": pair.cert_file,
        "tls.key_file": pair.key_file,
        **{key.replace("__", "."): value for key, value in overrides.items()},
    }
    return Settings.load(None, {}, chosen)


@asynccontextmanager
async def tls_broker(directory: Path, pair: Pair, **overrides: Any) -> AsyncIterator[Server]:
    server = await Server.start(tls_settings(directory, pair, **overrides))
    try:
        yield server
    finally:
        await server.close()
