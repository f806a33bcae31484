"""A broker whose object store cannot be used starts all the same, whichever kind of store it is, and says so."""

import asyncio
import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from brokers import PORTS, BrokerProcess
from ports import free_port

import pydanube

pytestmark = pytest.mark.process
TOPIC = "/default/orders"
PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE = 1


def obey_permissions() -> None:
    """Let the broker obey file permissions, also if the tests run as root."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


async def until_state(client: pydanube.Client, beginning: str) -> None:
    async with asyncio.timeout(120):
        while not (await client.describe_broker()).state.startswith(beginning):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)


def listed(broker: BrokerProcess) -> str:
    command = [sys.executable, "-m", "pydanube.cli", "brokers", "list", "--url", broker.url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("kind", ["directory", pytest.param("s3", marks=pytest.mark.exhaustive)])
async def test_a_broker_starts_without_its_store_and_goes_on_with_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o500)
    if kind == "s3":
        pytest.importorskip("obstore")
        monkeypatch.setenv("DANUBE_STORAGE_URL", "s3://bucket/prefix")
        options = f"endpoint=http://127.0.0.1:{free_port()},region=x,access_key_id=me,secret_access_key=secret"
        monkeypatch.setenv("DANUBE_STORAGE_OPTIONS", options)
    else:
        monkeypatch.setenv("DANUBE_STORAGE_URL", (disk / "objects").as_uri())
    monkeypatch.setenv("DANUBE_STORAGE_SEGMENT_AGE_S", "0")
    with BrokerProcess(tmp_path / "data", before_start=obey_permissions) as broker:
        async with pydanube.connect(broker.url) as client, client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(100)])
            await until_state(client, "uploads fail: ")
            assert "uploads fail" in await asyncio.to_thread(listed, broker)
            await producer.send_many([b"%d" % number for number in range(100, 200)])
            if kind == "directory":
                assert "store.not_writable" in broker.log.read_text()
                disk.chmod(0o700)
                await until_state(client, "ok")
                async with asyncio.timeout(120):
                    while not list(disk.glob("objects/segments/**/*.seg")):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            async with client.reader(TOPIC, partition=0, start="earliest") as reader:
                received = [(await reader.receive(timeout=60)).payload for _ in range(200)]
            assert received == [b"%d" % number for number in range(200)]
        assert await asyncio.to_thread(broker.stop, 90) == 0
        assert "Traceback" not in broker.log.read_text()


@pytest.mark.exhaustive
async def test_manifests_that_cannot_be_written_show_although_uploads_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "objects" / "manifests"
    in_the_way.parent.mkdir()
    in_the_way.touch()
    monkeypatch.setenv("DANUBE_STORAGE_URL", (tmp_path / "objects").as_uri())
    with BrokerProcess(tmp_path / "data") as broker:
        async with pydanube.connect(broker.url) as client:
            await client.create_topic(TOPIC)
            await until_state(client, "manifests, which a restore needs, cannot be written: ")
            assert "manifests" in await asyncio.to_thread(listed, broker)
            in_the_way.unlink()
            await until_state(client, "ok")
        assert await asyncio.to_thread(broker.stop, 90) == 0
        assert "Traceback" not in broker.log.read_text()


@pytest.mark.parametrize(
    ("url", "options"),
    [("nowhere://bucket", ""), ("file:///tmp/objects", "nonsense=1"), ("s3://bucket", "nonsense=1"), ("file:///", "")],
)
def test_a_store_that_is_configured_wrongly_refuses_the_start(
    url: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if url.startswith("s3"):
        pytest.importorskip("obstore")
    monkeypatch.setenv("DANUBE_STORAGE_URL", url)
    monkeypatch.setenv("DANUBE_STORAGE_OPTIONS", options)
    command = [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(tmp_path / "data"), *PORTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2)
    assert "danube: " in done.stderr and "Traceback" not in done.stderr
