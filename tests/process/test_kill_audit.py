"""kill -9 of a broker with an audit: events that were written stay, and the next start goes on behind them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from brokers import BrokerProcess

import pydanube

pytestmark = pytest.mark.process

TOPICS = 30


async def events(broker: BrokerProcess, to: str) -> list[dict[str, object]]:
    """Return the events about topics that were written, without a line that is torn."""
    if to == "file":
        lines = (broker.directory / "audit.log").read_bytes().splitlines(keepends=True)
        found = [json.loads(one) for one in lines if one.endswith(b"}\n")]
    else:
        async with connect(broker) as client:
            if "/system/audit" not in await client.list_topics():
                return []
            end = (await client.describe_topic("/system/audit")).partitions[0].end_offset
            async with client.reader("/system/audit", start="earliest") as reader:
                found = [json.loads((await anext(aiter(reader))).payload) for _ in range(end)]
    return [one for one in found if one["operation"] == "CreateTopic"]


def connect(broker: BrokerProcess) -> pydanube.Client:
    return pydanube.connect(broker.url, token=(broker.directory / "admin-key").read_text().strip())


@pytest.mark.parametrize("to", ["file", pytest.param("topic", marks=pytest.mark.exhaustive)])
async def test_written_events_survive_a_kill(tmp_path: Path, to: str):
    environment = {"DANUBE_AUTH_ENABLED": "true", "DANUBE_AUDIT_TO": to, "DANUBE_AUDIT_SESSIONS": "false"}
    with BrokerProcess(tmp_path / "data", environment=environment) as broker:
        for life in range(2):
            names = [f"/default/topic-{life}-{number}" for number in range(TOPICS)]
            async with connect(broker) as client:
                await asyncio.gather(*(client.create_topic(name) for name in names))
            async with asyncio.timeout(60):
                while len(written := await events(broker, to)) < TOPICS * (life + 1):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            broker.kill()
            if to == "file":
                with (tmp_path / "data" / "audit.log").open("ab") as torn:  # as a kill amid a write leaves it
                    torn.write(b'{"time":"2026')
            await asyncio.to_thread(broker.start)
            found = await events(broker, to)
            assert found[: len(written)] == written
            assert {one["resource"] for one in found} >= set(names)
