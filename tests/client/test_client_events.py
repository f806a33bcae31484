"""What the client logs: lost and regained brokers at INFO, outages, fencing and lost messages at WARNING."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flaky_wire import Wire

import pydanube
from pydanube import testing
from pydanube.runtime import telemetry
from waiting import until

TOPIC = "/default/orders"


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """The events of the client, as a program gets them that logs with the standard library."""
    monkeypatch.setattr(telemetry, "_destination", telemetry._Destination())
    caplog.set_level(logging.INFO, "pydanube.client")
    return caplog


def named(events: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and name of the events of the client."""
    return [
        (record.levelname, record.getMessage().split()[0])
        for record in events.records
        if record.name.startswith("pydanube.client")
    ]


async def test_a_failure_policy_that_is_not_the_stored_one_is_told(
    wire: Wire, events: pytest.LogCaptureFixture
) -> None:
    given = {"subscription": "billing", "create_topic": True}
    async with pydanube.connect(wire.url) as client:
        for failures in (3, 3, 5):
            events.clear()
            policy = pydanube.FailurePolicy(redeliveries_max=failures)
            async with client.consumer(TOPIC, **given, failure_policy=policy):
                told = [name for level, name in named(events) if level == "WARNING"]
            assert told == (["consumer.failure_policy_differs"] if failures == 5 else [])
        assert "redeliveries_max=3" in events.text and "redeliveries_max=5" in events.text
        events.clear()
        async with client.consumer(TOPIC, **given):
            assert named(events) == []


async def test_enforcing_leaves_the_policy_of_a_bound_topic_and_says_so(
    wire: Wire, events: pytest.LogCaptureFixture
) -> None:
    async with pydanube.connect(wire.url) as client:
        async with client.producer(TOPIC, schema=str), client.producer(TOPIC, schema=str, enforce=True):
            assert ("WARNING", "producer.not_enforced") in named(events)
        binding = await client.schemas.binding(TOPIC)
        assert binding is not None and str(binding.policy) == "none"


async def test_a_lost_connection_is_logged_once_and_so_is_the_next_one(
    wire: Wire, events: pytest.LogCaptureFixture
) -> None:
    async with pydanube.connect(wire.url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"one")
        assert named(events) == [("INFO", "broker.connected")]
        wire.cut()
        await producer.send(b"two")
    assert named(events) == [
        ("INFO", "broker.connected"),
        ("INFO", "broker.connection_lost"),
        ("INFO", "broker.reconnected"),
    ]
    assert f"address={wire.address}" in events.text


async def test_an_outage_is_one_warning_however_often_the_client_tries(
    wire: Wire, events: pytest.LogCaptureFixture
) -> None:
    async with pydanube.connect(wire.url) as client, client.producer(TOPIC) as producer:
        events.set_level(logging.DEBUG, "pydanube.client")
        await producer.send(b"one")
        with wire.closed():
            sending = asyncio.create_task(producer.send(b"two"))
            await until(lambda: [name for _, name in named(events)].count("broker.unreachable") > 3)
        await sending
    warnings = [name for level, name in named(events) if level == "WARNING"]
    assert warnings == ["broker.unreachable"]
    assert named(events)[-1] == ("INFO", "broker.reconnected")


async def test_a_broker_that_is_not_there_is_logged_once(wire: Wire, events: pytest.LogCaptureFixture) -> None:
    events.set_level(logging.DEBUG, "pydanube.client")
    wire.open_for_new = False
    opening = asyncio.create_task(pydanube.connect(wire.url).open())
    await until(lambda: [name for _, name in named(events)].count("broker.unreachable") > 3)
    wire.open_for_new = True
    client = await opening
    await client.close()
    assert [level for level, name in named(events) if name == "broker.unreachable"][:3] == ["INFO", "DEBUG", "DEBUG"]
    assert ("INFO", "broker.connected") in named(events)


async def test_a_client_that_never_connected_raises_and_does_not_warn(events: pytest.LogCaptureFixture) -> None:
    with pytest.raises(pydanube.Unavailable):
        await pydanube.connect("danube://127.0.0.1:1", timeout=0.3)
    assert {level for level, _ in named(events)} == {"INFO"}


async def test_a_fenced_producer_is_a_warning(client: pydanube.Client, events: pytest.LogCaptureFixture) -> None:
    old = await client.producer(TOPIC, name="till-3")
    async with client.producer(TOPIC, name="till-3") as new:
        await new.send(b"new")
        with pytest.raises(pydanube.StaleEpoch):
            await old.send(b"old")
    await old.close()
    assert named(events) == [("WARNING", "producer.fenced")]
    assert "topic=/default/orders name=till-3" in events.text


async def test_a_consumer_that_was_taken_over_is_a_warning(
    client: pydanube.Client, events: pytest.LogCaptureFixture
) -> None:
    old = await client.consumer(TOPIC, subscription="billing", name="till-1", create_topic=True)
    async with client.consumer(TOPIC, subscription="billing", name="till-1"):
        with pytest.raises(pydanube.Refused):
            await old.receive(timeout=60)
    await old.close()
    assert named(events) == [("WARNING", "consumer.failed")]
    assert "subscription=billing" in events.text


async def test_queued_messages_that_fail_are_one_warning(wire: Wire, events: pytest.LogCaptureFixture) -> None:
    async with pydanube.connect(wire.url) as client:
        producer = await client.producer(TOPIC, timeout=0.2)
        wire.answers_flow = False
        for _ in range(3):
            producer.send_nowait(b"x")
            await asyncio.sleep(0)
        with pytest.raises(pydanube.Unavailable, match="3 queued messages were not published"):
            await producer.flush()
        wire.cut()
        wire.answers_flow = True
        await producer.close()
    assert [name for level, name in named(events) if level == "WARNING"] == ["producer.messages_failed"]


async def test_a_close_whose_error_is_hidden_by_another_is_a_warning(
    wire: Wire, events: pytest.LogCaptureFixture
) -> None:
    async def work(client: pydanube.Client) -> None:
        async with client.producer(TOPIC, timeout=0.2) as producer:
            wire.answers_flow = False
            producer.send_nowait(b"x")
            raise ZeroDivisionError

    async with pydanube.connect(wire.url) as client:
        with pytest.raises(ZeroDivisionError):
            await work(client)
        wire.cut()
        wire.answers_flow = True
    assert ("WARNING", "client.close_failed") in named(events)
    assert "closed=producer" in events.text


PROGRAM = """
import asyncio, sys
import pydanube

async def main():
    async with pydanube.connect() as client, client.producer("/default/orders") as producer:
        await producer.send(b"one")
        print("connected", flush=True)
        sys.stdin.readline()
        await producer.send(b"two")
        print("sent", flush=True)

{logging}
asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        ("", []),
        ("import logging; logging.basicConfig(level=logging.INFO)", ["connected", "connection_lost", "reconnected"]),
    ],
)
async def test_a_plain_program_sees_nothing_of_a_reconnect_and_one_that_logs_sees_it_on_stderr(
    tmp_path: Path, wire: Wire, setup: str, expected: list[str]
) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM.format(logging=setup),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"DANUBE_URL": wire.url},
    )
    assert program.stdout is not None and program.stdin is not None
    async with asyncio.timeout(120):
        assert await program.stdout.readline() == b"connected\n"
        wire.cut()
        program.stdin.write(b"\n")
        out, err = await program.communicate()
    assert out == b"sent\n"
    assert program.returncode == 0
    lines = [line for line in err.decode().splitlines() if "broker." in line]
    assert [line.split("broker.")[1].split()[0] for line in lines] == expected
    assert not expected or lines[0].startswith("INFO:pydanube.client.connection.routing:broker.connected address=")


@pytest.mark.process
async def test_a_plain_program_sees_an_outage_on_stderr(tmp_path: Path) -> None:
    async with testing.broker(tmp_path / "data") as url:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM.format(logging=""),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"DANUBE_URL": url},
        )
        assert program.stdout is not None and program.stdin is not None and program.stderr is not None
        async with asyncio.timeout(120):
            assert await program.stdout.readline() == b"connected\n"
    program.stdin.write(b"\n")
    async with asyncio.timeout(120):
        warning = (await program.stderr.readline()).decode()
        assert " warning  broker.unreachable " in warning
        async with testing.broker(tmp_path / "data", server_port=int(url.rsplit(":", 1)[1])):
            out, err = await program.communicate()
    assert (out, program.returncode) == (b"sent\n", 0)
    assert err == b"", "one line for one outage"
