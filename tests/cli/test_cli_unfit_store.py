"""Topics of the ack level `stored` on an object store without create-only puts: refused in one line, exit code 1."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiering_harness import FaultyObjectStore

from pydanube.runtime.objects.plugin_server import PluginServer

TOPIC = "/default/orders"


@pytest.mark.process
async def test_a_store_without_create_only_puts_is_named_and_nothing_changes(
    tmp_path: Path, serve: Callable[..., Any], danube: Callable[..., Any]
) -> None:
    server = PluginServer(FaultyObjectStore("careless"))
    port = await server.start("127.0.0.1", 0)
    store = f"grpc://127.0.0.1:{port}"
    broker = await asyncio.to_thread(serve, tmp_path / "data", "--storage-url", store)

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(lambda: danube(*arguments, url=broker.url))

    async def refused(*arguments: str) -> str:
        done = await run(*arguments)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert done.stderr.startswith("danube: ") and done.stderr.count("\n") == 1, done.stderr
        return str(done.stderr)

    line = await refused("topics", "create", TOPIC, "--ack-level", "stored")
    assert store in line and "create-only" in line and "use another store" in line
    assert json.loads((await run("topics", "list", "--json")).stdout) == []
    assert (await run("topics", "create", TOPIC)).returncode == 0
    line = await refused("topics", "set-ack-level", TOPIC, "stored")
    assert store in line and "use another store" in line
    described = json.loads((await run("topics", "describe", TOPIC, "--json")).stdout)
    assert described["config"]["ack_level"] == "durable"
    await asyncio.to_thread(broker.end)
    await server.close()
