"""`danube app run` and `danube app describe`: processes, signals, health, files that change."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from commands import danube
from shop_app import Done, Order

import pydanube
from pydanube.client.profiles import Profile, Profiles

HERE = Path(__file__).parent
SECONDS_MAX = 120

AT_WORK = re.compile(r'handler="shop_app.serve",.*(bar"|"acked")\} [1-9]')
"""Metrics of handlers that run, or have run."""


@asynccontextmanager
async def service(url: str | None, *arguments: str, where: Path = HERE, stderr: int = PIPE) -> AsyncIterator[Process]:
    """Run the app as a process, in its directory; it is killed at the end if it did not end itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pydanube.cli",
        "app",
        "run",
        *arguments,
        *([] if url is None else ["--url", url]),
        cwd=where,
        stdout=PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), SECONDS_MAX)
            except TimeoutError:
                process.kill()
        await process.communicate()


async def line_of(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS_MAX):
        return (await process.stdout.readline()).decode()


async def fetch(address: str, path: str) -> tuple[int, str]:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


async def orders(client: pydanube.Client, *given: Order) -> None:
    async with client.producer("/shop/orders", schema=Order) as producer:
        await producer.send_many(list(given), keys=[f"table-{order.id % 3}" for order in given])


async def served(client: pydanube.Client, count: int) -> list[Done]:
    async with client.consumer(
        "/shop/done", subscription="look", start="earliest", create_topic=True, schema=Done
    ) as consumer:
        return [(await consumer.receive(timeout=SECONDS_MAX)).value() for _ in range(count)]


@pytest.mark.process
async def test_a_service_tells_its_health_and_drains_on_sigterm(client: pydanube.Client) -> None:
    async with service(client.url, "shop_app:app", "--port", "0") as process:
        ready = re.fullmatch(r"danube app ready handlers=2 http=(\S+)\n", await line_of(process))
        assert ready is not None
        assert [(await fetch(ready[1], path))[0] for path in ("/healthz", "/readyz", "/none")] == [200, 200, 404]
        await orders(client, *(Order(n, "slow") for n in range(4)))
        while not AT_WORK.search((await fetch(ready[1], "/metrics"))[1]):  # noqa: ASYNC110  a process tells by HTTP
            await asyncio.sleep(0)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), SECONDS_MAX) == 0
    described = await client.describe_subscription("/shop/orders", "bar")
    acked = 4 - sum(place.lag for place in described.partitions)
    assert acked > 0
    assert len(await served(client, acked)) == acked


@pytest.mark.process
async def test_a_service_takes_the_profile_of_its_app_before_the_one_in_use(
    client: pydanube.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANUBE_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DANUBE_URL", raising=False)
    profiles = Profiles.load()
    profiles.add("here", Profile(client.url), replace=False)
    profiles.add("elsewhere", Profile("danube://127.0.0.1:1"), replace=False)
    profiles.use("elsewhere")
    profiles.save()
    (tmp_path / "shop.py").write_text('import pydanube\napp = pydanube.App(profile="here")\n')
    async with service(None, "shop:app", where=tmp_path) as process:
        assert await line_of(process) == "danube app ready handlers=0\n"


@pytest.mark.process
async def test_a_service_whose_logs_nobody_reads_works_and_ends(client: pydanube.Client) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)))
        async with service(client.url, "shop_app:app", stderr=writing) as process:
            assert (await line_of(process)).startswith("danube app ready")
            await orders(client, *(Order(n) for n in range(10)))
            assert {done.id for done in await served(client, 10)} == set(range(10))
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), SECONDS_MAX) == 0
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.process
async def test_a_worker_that_is_killed_is_started_again_and_loses_nothing(client: pydanube.Client) -> None:
    poisoned = Order(-1, "poison")
    async with service(client.url, "shop_app:app", "--workers", "2", "--drain", "5") as process:
        for _ in range(2):
            assert (await line_of(process)).startswith("danube app ready")
        await orders(client, *(Order(n) for n in range(30)), poisoned, *(Order(n) for n in range(30, 60)))
        assert "danube app ready" in await line_of(process)  # the one that died
        # the order that kills would kill each worker: it is taken out by hand
        place = await _place_of(client, poisoned)
        await client.skip("/shop/orders", "bar", 0, [place])
        found = await served(client, 60)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), SECONDS_MAX) == 0
    assert {done.id for done in found} >= set(range(30))


@pytest.mark.process
async def test_ctrl_c_in_a_terminal_lets_the_workers_finish_what_they_have_begun(client: pydanube.Client) -> None:
    async with service(client.url, "shop_app:app", "--workers", "2") as process:
        for _ in range(2):
            assert (await line_of(process)).startswith("danube app ready")
        async with client.consumer("/shop/begun", subscription="look", create_topic=True) as begun:
            await orders(client, Order(1, "long"))
            await begun.receive(timeout=SECONDS_MAX)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: each process of the group gets one
            assert process.stderr is not None
            async with asyncio.timeout(SECONDS_MAX):
                while b"app.draining" not in (line := await process.stderr.readline()):
                    assert line, "it has ended"
            async with client.producer("/shop/go-on") as producer:
                await producer.send(b"")
        async with asyncio.timeout(SECONDS_MAX):
            assert b"stopped at once" not in await process.stderr.read(), "a worker was given two signals"
            assert await process.wait() == 0
    assert [done.id for done in await served(client, 1)] == [1]


async def _place_of(client: pydanube.Client, order: Order) -> int:
    async with client.reader("/shop/orders", start="earliest", end="latest", schema=Order) as reader:
        return next(message.offset for message in [one async for one in reader] if message.value() == order)


@pytest.mark.process
async def test_a_changed_file_starts_the_app_again(client: pydanube.Client, tmp_path: Path) -> None:
    module = tmp_path / "tiny.py"
    text = "import pydanube\napp = pydanube.App()\n"
    handler = "\n@app.subscriber('/shop/orders', subscription='{0}')\nasync def {0}(order: bytes) -> None: ...\n"
    module.write_text(text + handler.format("one"))
    async with service(client.url, "tiny:app", "--reload", where=tmp_path) as process:
        assert await line_of(process) == "danube app ready handlers=1\n"
        module.write_text(text + "this is wrong\n")
        module.write_text(text + handler.format("one") + handler.format("two"))
        assert await line_of(process) == "danube app ready handlers=2\n"


def test_describe_shows_what_an_app_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    done = danube("app", "describe", "shop_app:app")
    assert done.returncode == 0
    (serve,) = [line for line in done.stdout.splitlines() if "serve" in line]
    assert serve.split() == ["shop_app.serve", "/shop/orders", "bar", "key-shared", "Order", "Done", "to", "/shop/done"]
    (clean,) = [line for line in done.stdout.splitlines() if "clean" in line]
    assert clean.split() == ["shop_app.clean", "/shop/cleaning", "ticks", "failover", "1h"]


def test_describe_prints_an_asyncapi_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    document = json.loads(danube("app", "describe", "shop_app:app", "--json").stdout)
    assert document["asyncapi"] == "3.0.0"
    receive = document["operations"]["shop_app_serve"]
    assert (receive["action"], receive["summary"]) == ("receive", "Serve a drink.")
    assert receive["x-danube"]["subscription"] == "bar"
    assert document["channels"]["shop_done"]["address"] == "/shop/done"
    assert document["operations"]["shop_app_serve_publish"]["action"] == "send"
    payload = document["components"]["messages"]["Order"]["payload"]["schema"]
    assert set(payload["$defs"]["Order"]["properties"]) == {"id", "drink"}
    for operation in document["operations"].values():
        for reference in (operation["channel"], *operation["messages"]):
            found = document
            for part in reference["$ref"].removeprefix("#/").split("/"):
                found = found[part]


@pytest.mark.parametrize(
    ("target", "text", "said"),
    [
        ("wrong", "", "names no app"),
        ("missing_module:app", "", "there is no module 'missing_module': "),
        ("needy:app", "import missing_module", "needy cannot be imported: it needs missing_module"),
        ("shop.py:app", "", "write the module, shop:app"),
        ("broken:app", "1/0", "ZeroDivisionError: division by zero (broken.py:1)"),
        ("none:app", "app = 3", "'app' of none is not a pydanube.App: there are none"),
        ("typo:ap", "import pydanube\napp = pydanube.App()", "'ap' of typo is not a pydanube.App: did you mean 'app'?"),
        (
            "handler:app",
            "import pydanube\napp = pydanube.App()\n@app.every('0s')\ndef tick(): ...\n",
            "handler.tick (handler.py:3): the interval is '0s'",
        ),
    ],
)
def test_an_app_that_cannot_run_is_wrong_usage(
    target: str, text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{target.partition(':')[0]}.py").write_text(text) if text else None
    monkeypatch.chdir(tmp_path)
    done = danube("app", "run", target)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
