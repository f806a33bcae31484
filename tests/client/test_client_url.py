"""Which broker a client connects to when its program names none."""

from __future__ import annotations

from pathlib import Path

import pytest

import pydanube
from pydanube import Invalid
from pydanube.client.connection.servers import parse_servers

HERE = "danube://127.0.0.1:6655"


@pytest.fixture(autouse=True)
def _without_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DANUBE_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize("value", [None, ""])
async def test_without_the_variable_it_is_this_machine(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("DANUBE_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("DANUBE_URL", value)
    assert pydanube.connect().url == pydanube.connect(None).url == HERE


async def test_the_variable_is_read_when_the_client_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_URL", "danube://a:1,b:2")
    client = pydanube.connect()
    assert client.url == "danube://a:1,b:2"
    assert client._brokers.addresses == parse_servers("a:1,b:2").native


async def test_a_url_that_is_given_wins(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_URL", "danube://nowhere.invalid:1")
    async with pydanube.connect(url) as client:
        assert await client.list_namespaces() == ["default"]


@pytest.mark.parametrize("connect", [pydanube.connect, pydanube.connect_blocking])
async def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, connect: type) -> None:
    monkeypatch.setenv("DANUBE_URL", "ftp://localhost:8650")
    with pytest.raises(Invalid, match=r"variable DANUBE_URL is wrong: .*scheme 'ftp'"):
        connect()


async def test_an_async_client_connects_to_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_URL", url)
    async with pydanube.connect() as client:
        assert await client.list_namespaces() == ["default"]
